from metalmark.cli import main

main()

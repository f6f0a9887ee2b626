"""One hidden layer of ReLU between inputs and classes: what mnist-mlp and input-pipeline train."""

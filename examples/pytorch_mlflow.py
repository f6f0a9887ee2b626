"""pytorch_mlflow_plain.py with three lines of mm.run, and the import: the diff is the whole of it.

python examples/pytorch_mlflow.py [--epochs 3] [--samples 2048] [--tracking sqlite:///mlflow.db]

MLflow gets what it got before. Metalmark keeps the loss of every step, each step's time, how long it waited for input,
and what the sensors saw, in its own store: docs/library.md. `track="mlflow"` would send that to MLflow, too.
"""

import argparse

import mlflow
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import metalmark as mm


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--tracking", default="sqlite:///mlflow.db")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    images = torch.rand(options.samples, 28 * 28)
    labels = (images[:, :392].sum(1) > images[:, 392:].sum(1)).long()
    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    mlflow.set_tracking_uri(options.tracking)
    mlflow.set_experiment("which half is brighter")
    with mlflow.start_run(), mm.run("which half is brighter") as run:
        mlflow.log_params({"epochs": options.epochs, "lr": 1e-3})
        for epoch in range(options.epochs):
            total = 0.0
            for image, label in run.watch(loader):
                image, label = image.to(device), label.to(device)
                optimizer.zero_grad()
                loss = criterion(model(image), label)
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
                total += loss.item()
            mlflow.log_metric("loss", total / len(loader), step=epoch)
            print(f"epoch {epoch + 1}: loss {total / len(loader):.4f}")


if __name__ == "__main__":
    main()

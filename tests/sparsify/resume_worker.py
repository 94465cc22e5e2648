"""A training in its own process, whole or in two parts, for test_checkpoint.py."""

import sys

import torch
from loops import attach, batch, mlp, run, sgd

command, _, stop = sys.argv[1].partition(":")
folder = sys.argv[2]
torch.set_num_threads(1)
torch.manual_seed(0 if command != "rest" else 99)  # the resumed process starts from another initialisation
model = mlp(normalise=True)
optimizer = sgd(model, momentum=0.9)
sparse = attach(model, optimizer, "cigl")
first = 1
if command == "rest":
    state = torch.load(f"{folder}/checkpoint.pt", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    sparse.load_state_dict(state["sparse"])
    first = int(stop) + 1
run(model, optimizer, (int(stop) if command == "first" else 40) - first + 1, first=first)
if command == "first":
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sparse": sparse.state_dict()}
    torch.save(state, f"{folder}/checkpoint.pt")
else:
    final = sparse.finalize([batch(1), batch(2)]).state_dict()
    torch.save(final | {f"now.{k}": v for k, v in model.state_dict().items()}, f"{folder}/{command}.pt")

"""One of two processes of test_several_processes.py: half of each batch, gloo. Saves its masks and final weights."""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

kind, folder = sys.argv[1:]
torch.set_num_threads(1)
warnings.filterwarnings("ignore")

if kind == "transformers":
    from test_transformers_callback import Classifier, InOrder, Rows, trainer

    model = Classifier()
    made = trainer(
        folder,
        model,
        kind=InOrder,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        ddp_backend="gloo",
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        num_train_epochs=8,
        lr_scheduler_type="constant",
        max_grad_norm=0.5,
        save_strategy="steps",
        save_steps=16,
    )
    made.train()
else:
    from test_lightning_callback import DataLoader, Module, Rows, trainer

    model = Module()
    made = trainer(
        folder,
        max_epochs=8,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,  # which would shuffle
    )
    rows = DistributedSampler(Rows(), num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False)
    made.fit(model, DataLoader(Rows(), batch_size=3, sampler=rows))

torch.save({"masks": made.watch.masks, "model": model.state_dict()}, f"{folder}/{dist.get_rank()}.pt")
dist.barrier()

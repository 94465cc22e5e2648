"""One of two processes of test_several_processes.py: half of each batch, gloo. Saves its masks and final weights."""

import sys
import warnings

import torch
import torch.distributed as dist

kind, folder = sys.argv[1:]
torch.set_num_threads(1)
warnings.filterwarnings("ignore")

if kind == "transformers":
    from test_transformers_callback import OPTIONS, Classifier, InOrder, Rows, trainer
else:
    from test_lightning_callback import OPTIONS, DataLoader, Module, Rows, trainer  # noqa: F401

if kind == "transformers":
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
        data=Rows(as_dict=True),
    )
    made.train()
else:
    model = Module()
    made = trainer(
        folder, max_epochs=8, accumulate_grad_batches=2, gradient_clip_val=0.5, devices=2, strategy="ddp"
    )
    made.fit(model, DataLoader(Rows(), batch_size=3, shuffle=False))

torch.save({"masks": made.watch.masks, "model": model.state_dict()}, f"{folder}/{dist.get_rank()}.pt")
dist.barrier()

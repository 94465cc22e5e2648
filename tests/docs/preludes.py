"""What pages take for granted, and say so: the reader's own model, optimizer and data. Here they are small."""

LOADERS = """
import torch
import cigl
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(120) % 3
inputs = torch.randn(120, 20) + labels[:, None]
loader = train_loader = DataLoader(TensorDataset(inputs, labels), batch_size=12, shuffle=True)
test_loader = held_out_loader = DataLoader(TensorDataset(inputs, labels), batch_size=60)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

CALIBRATION = """
import torch
import cigl
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
labels = torch.arange(200) % 10
inputs = torch.randn(200, 20)
inputs[torch.arange(200), labels] += 2
data = TensorDataset(inputs, labels)
train_loader, validation_loader, test_loader = (DataLoader(data, batch_size=50) for _ in range(3))
model, other_model = torch.nn.Linear(20, 10), torch.nn.Linear(20, 10)
dropout_model = torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(20, 10))
image_model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 10))
image_loader = DataLoader(TensorDataset(torch.rand(40, 3, 8, 8), labels[:40]), batch_size=20)


def trained(model, loader, loss):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = cigl.method("cigl", second_moment=True, update_every=4)
    sparse = cigl.attach(model, optimizer, method, sparsity=0.5, epochs=10, steps_per_epoch=len(loader))
    for _ in range(10):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return sparse


sparse = trained(torch.nn.Linear(20, 10), train_loader, torch.nn.functional.cross_entropy)
numbers = TensorDataset(inputs, inputs[:, :1])
regression_train = regression_test = DataLoader(numbers, batch_size=50)
regression = trained(torch.nn.Linear(20, 1), regression_train, torch.nn.functional.mse_loss)
"""

TRAINERS = (
    LOADERS
    + """
from accelerate.state import AcceleratorState

AcceleratorState._reset_state(reset_partial_state=True)
loader = DataLoader(TensorDataset(inputs[:40], labels[:40]), batch_size=5)
ids = torch.randint(0, 1000, (40, 8))
train = [{"input_ids": row, "labels": row[0] % 2} for row in ids]
"""
)

IMAGES = """
import pathlib

import torch
import cigl
from PIL import Image

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 2)).eval()
x = torch.rand(4, 3, 224, 224)
preprocessing = cigl.Preprocessing(224, mean=(0.5,) * 3, std=(0.25,) * 3)
cigl.save(model, "model.cigl", classes=["cat", "dog"], preprocessing=preprocessing)
pathlib.Path("photos").mkdir(exist_ok=True)
for path in ("cat.jpg", "photos/dog.png"):
    Image.new("RGB", (300, 200), (120, 60, 20)).save(path)
"""

DEPLOYMENT = (
    IMAGES
    + """
from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
bert = BertForSequenceClassification(config).eval()
batch, other_batch = (
    {"input_ids": torch.randint(0, 100, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
    for shape in ((2, 8), (3, 11))
)
"""
)

PRELUDES = {
    "docs/format.md": IMAGES,
    "docs/runtime.md": DEPLOYMENT,
    "docs/trainers.md": TRAINERS,
    "docs/calibration.md": CALIBRATION,
    "README.md": LOADERS,
    "docs/training.md": LOADERS,
    "docs/random-mask.md": LOADERS,
}

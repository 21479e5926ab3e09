"""Trains with the Trainer of transformers: evaluation, metrics, best model at the end, early stopping, and resuming from a
checkpoint."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(n)
        self.rows = [(torch.randint(5, 90, (12,), generator=g), i % 3) for i in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, label = self.rows[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": label}


def compute_metrics(p):
    preds = np.argmax(p.predictions, axis=1)
    assert p.predictions.shape == (len(p.label_ids), 3)
    return {"accuracy": (preds == p.label_ids).astype(np.float32).mean().item()}


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 2.0, 3.0], device=model.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits.view(-1, 3), labels.view(-1), weight=weight)
        return (loss, outputs) if return_outputs else loss


def main():
    set_seed(0)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100, num_labels=3
    )
    make = lambda: BertForSequenceClassification(config)
    args = (
        TrainingArguments(
            "trainer",
            num_train_epochs=2,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            logging_steps=1,
            warmup_steps=2,
            weight_decay=0.01,
            fp16=True,
            gradient_accumulation_steps=2,
            report_to="none",
            save_total_limit=2,
            lr_scheduler_type="cosine",
            gradient_checkpointing=True,
            dataloader_num_workers=0,
            group_by_length=False,
        )
        if "group_by_length" in TrainingArguments.__dataclass_fields__
        else TrainingArguments(
            "trainer",
            num_train_epochs=2,
            per_device_train_batch_size=8,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="eval_loss",
            greater_is_better=False,
            logging_steps=1,
            fp16=True,
            gradient_accumulation_steps=2,
            report_to="none",
            save_total_limit=2,
            gradient_checkpointing=True,
        )
    )
    trainer = Weighted(
        model_init=make,
        args=args,
        train_dataset=Sentences(32),
        eval_dataset=Sentences(16),
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(3)],
    )
    result = trainer.train()
    print({k: result.metrics[k] for k in ("train_loss", "epoch")}, trainer.state.best_model_checkpoint)
    print(trainer.evaluate())
    last = get_last_checkpoint("trainer")
    args.num_train_epochs = 3
    resumed = Weighted(
        model_init=make, args=args, train_dataset=Sentences(32), eval_dataset=Sentences(16), compute_metrics=compute_metrics
    )
    resumed.train(resume_from_checkpoint=last)
    predictions = resumed.predict(Sentences(16))
    print(predictions.predictions.shape, predictions.metrics["test_loss"])
    resumed.save_model("final")


if __name__ == "__main__":
    main()

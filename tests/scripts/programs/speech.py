"""Trains speech models with a spectrogram front end, weight-normed convolutions, GRU, CTC, and the losses of a HiFi-GAN-like
vocoder."""

import argparse
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, remove_weight_norm, weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Utterances(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(800 + 64 * (i % 4), generator=g), torch.randint(1, 12, (3 + i % 3,), generator=g)


def collate(batch):
    batch = sorted(batch, key=lambda b: -len(b[0]))
    waves, texts = zip(*batch)
    return (
        pad_sequence(waves, batch_first=True),
        torch.tensor([len(w) for w in waves]),
        pad_sequence(texts, batch_first=True),
        torch.tensor([len(t) for t in texts]),
    )


class MelSpectrogram(nn.Module):
    def __init__(self, n_fft=64, hop=16, mels=20):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("fb", torch.rand(n_fft // 2 + 1, mels))

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True).abs() ** 2
        return torch.log(spec.transpose(1, 2) @ self.fb + 1e-6)


def spec_augment(x, width=3):
    mask = torch.ones_like(x)
    for row in mask:
        start = torch.randint(0, x.size(2) - width, (1,)).item()
        row[:, start : start + width] = 0
    return x * mask


class Recognizer(nn.Module):
    def __init__(self, mels=20, vocab=12, hidden=24):
        super().__init__()
        self.mel = MelSpectrogram(mels=mels)
        self.conv = weight_norm(nn.Conv1d(mels, hidden, 3, padding=1))
        self.rnn = nn.GRU(hidden, hidden, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.attention = nn.MultiheadAttention(2 * hidden, 2, batch_first=True)
        self.out = parametrizations.weight_norm(nn.Linear(2 * hidden, vocab))

    def forward(self, waves, lengths):
        x = self.mel(waves)
        if self.training:
            x = spec_augment(x)
        frames = (lengths // self.mel.hop + 1).clamp(max=x.size(1))
        x = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        packed = pack_padded_sequence(x, frames.cpu(), batch_first=True, enforce_sorted=True)
        x, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        padding = torch.arange(x.size(1), device=x.device)[None] >= frames.to(x.device)[:, None]
        y, _ = self.attention(x, x, x, key_padding_mask=padding, need_weights=False)
        return F.log_softmax(self.out(x + y), -1), frames


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(20, 16, 7, padding=3))
        self.ups = nn.ModuleList([weight_norm(nn.ConvTranspose1d(16 // 2**i, 8 // 2**i, 8, 4, 2)) for i in range(2)])
        self.post = weight_norm(nn.Conv1d(4, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up in self.ups:
            x = up(F.leaky_relu(x, 0.1))
        return torch.tanh(self.post(F.leaky_relu(x))).squeeze(1)

    def remove_weight_norm(self):
        for layer in [self.pre, *self.ups, self.post]:
            remove_weight_norm(layer)


class PeriodDiscriminator(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        norm = nn.utils.spectral_norm if period == 2 else weight_norm
        self.convs = nn.ModuleList([norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in ((1, 8), (8, 16), (16, 1))])

    def forward(self, x):
        b, t = x.shape
        if t % self.period:
            x = F.pad(x, (0, self.period - t % self.period), "reflect")
        x, maps = x.view(b, 1, -1, self.period), []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            maps.append(x)
        return x.flatten(1), maps


def greedy(log_probs, frames, blank=0):
    best = log_probs.argmax(-1).cpu().tolist()
    return [[k for k, _ in itertools.groupby(row[:n]) if k != blank] for row, n in zip(best, frames.tolist())]


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(3)
    device = torch.device("cuda:0")
    model = Recognizer().to(device)
    vocoder, discs = Vocoder().to(device), nn.ModuleList([PeriodDiscriminator(2), PeriodDiscriminator(3)]).to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    opt_g = torch.optim.AdamW(vocoder.parameters(), 2e-4, betas=(0.8, 0.99))
    opt_d = torch.optim.AdamW(itertools.chain(*[d.parameters() for d in discs]), 2e-4, betas=(0.8, 0.99))
    sched = torch.optim.lr_scheduler.ExponentialLR(opt_g, gamma=0.999)
    ctc = nn.CTCLoss(blank=0, zero_infinity=True)
    loader = DataLoader(Utterances(), 4, collate_fn=collate, num_workers=1, pin_memory=True)
    best = float("inf")
    for epoch in range(args.epochs):
        model.train()
        for waves, lengths, texts, text_lengths in loader:
            waves, texts = waves.to(device, non_blocking=True), texts.to(device, non_blocking=True)
            log_probs, frames = model(waves, lengths)
            loss = ctc(log_probs.transpose(0, 1), texts, frames, text_lengths)
            optimizer.zero_grad()
            loss.backward()
            grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            if torch.isnan(grad_norm):
                print("grad norm is nan, skipping")
                continue
            optimizer.step()
            with torch.no_grad():
                mel = model.mel(waves).transpose(1, 2)[:, :, :32]
            real, fake = waves[:, :512], vocoder(mel)
            opt_d.zero_grad()
            loss_d = sum(((1 - d(real)[0]) ** 2).mean() + (d(fake.detach())[0] ** 2).mean() for d in discs)
            loss_d.backward()
            opt_d.step()
            opt_g.zero_grad()
            loss_mel = F.l1_loss(model.mel(fake), model.mel(real)) * 45
            loss_fm = sum(F.l1_loss(a.detach(), b) for d in discs for a, b in zip(d(real)[1], d(fake)[1]))
            (loss_mel + loss_fm + sum(((1 - d(fake)[0]) ** 2).mean() for d in discs)).backward()
            opt_g.step()
        sched.step()
        model.eval()
        errors = words = 0
        with torch.no_grad():
            for waves, lengths, texts, text_lengths in loader:
                log_probs, frames = model(waves.cuda(), lengths)
                for hyp, ref, n in zip(greedy(log_probs, frames), texts, text_lengths):
                    errors += edit_distance(hyp, ref[:n].tolist())
                    words += int(n)
        print(f"epoch {epoch} ctc {loss.item():.4f} d {loss_d.item():.3f} mel {loss_mel.item():.3f} CER {errors / words:.3f}")
        if loss.item() < best:
            best = loss.item()
            torch.save({"model": model.state_dict(), "vocoder": vocoder.state_dict(), "discs": discs.state_dict()}, "speech.pt")
    vocoder.eval()
    vocoder.remove_weight_norm()
    with torch.inference_mode():
        audio = vocoder(mel[:1]).squeeze().cpu().numpy()
    print("audio", audio.shape, abs(audio).max() <= 1.0)


if __name__ == "__main__":
    main()

"""Trains a WGAN-GP and a DCGAN with two optimizers, spectral norm, gradient penalty, fixed noise and image grids."""

import argparse
import os

import torch
import torch.autograd as autograd
import torch.nn as nn
import torch.optim as optim

parser = argparse.ArgumentParser()
parser.add_argument("--niter", type=int, default=2)
parser.add_argument("--outf", default="out")
opt = parser.parse_args()
os.makedirs(opt.outf, exist_ok=True)
torch.manual_seed(7)
torch.backends.cudnn.benchmark = True
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
nz, ngf, ndf, nc = 16, 8, 8, 1


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1 and hasattr(m, "weight") and not hasattr(m, "parametrizations"):
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.InstanceNorm2d(ngf, affine=True),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.main = nn.Sequential(
            norm(nn.Conv2d(nc, ndf, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Dropout2d(0.1),
            norm(nn.Conv2d(ndf, ndf * 2, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4),
        )

    def forward(self, x):
        return self.main(x).view(-1, 1).squeeze(1)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1, 1, 1, device=real.device).expand_as(real)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mixed)
    grads = autograd.grad(score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True, only_inputs=True)[0]
    return ((grads.view(grads.size(0), -1).norm(2, dim=1) - 1) ** 2).mean() * 10


def save_grid(images, path):
    images = images.detach().cpu().clone()
    images.add_(1).div_(2).clamp_(0, 1)
    array = images.mul(255).add_(0.5).clamp_(0, 255).permute(0, 2, 3, 1).to(torch.uint8).numpy()
    array.tofile(path)


netG = Generator().to(device)
netG.apply(weights_init)
netD = Discriminator(nn.utils.spectral_norm).to(device)
netD.apply(weights_init)
critic = Discriminator(nn.utils.parametrizations.spectral_norm).to(device)
criterion = nn.BCEWithLogitsLoss()
fixed_noise = torch.randn(8, nz, 1, 1, device=device)
data = torch.utils.data.TensorDataset(torch.rand(40, 1, 16, 16) * 2 - 1, torch.zeros(40))
loader = torch.utils.data.DataLoader(data, 8, shuffle=True, num_workers=0)
optD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optC = optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9), foreach=False)
optG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
ema = optim.swa_utils.AveragedModel(netG, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9))
for epoch in range(opt.niter):
    for i, (real, _) in enumerate(loader, 0):
        netD.zero_grad()
        real = real.to(device)
        label = torch.full((real.size(0),), 1, dtype=real.dtype, device=device)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        noise = torch.randn(real.size(0), nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(0)
        output = netD(fake.detach())
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        optD.step()
        for p in critic.parameters():
            p.requires_grad = True
        optC.zero_grad(set_to_none=True)
        lossC = critic(fake.detach()).mean() - critic(real).mean() + gradient_penalty(critic, real, fake.detach())
        lossC.backward()
        optC.step()
        for p in critic.parameters():
            p.requires_grad = False
        netG.zero_grad()
        label.fill_(1)
        errG = criterion(netD(fake), label) - critic(fake).mean() * 0.1
        errG.backward()
        optG.step()
        ema.update_parameters(netG)
        print(
            "[%d/%d][%d/%d] Loss_D: %.4f Loss_G: %.4f Loss_C: %.4f D(G(z)): %.4f"
            % (epoch, opt.niter, i, len(loader), (errD_real + errD_fake).item(), errG.item(), lossC.item(), D_G_z1)
        )
    with torch.no_grad():
        save_grid(ema(fixed_noise), f"{opt.outf}/fake_samples_epoch_{epoch:03d}.bin")
    torch.save(netG.state_dict(), f"{opt.outf}/netG_epoch_{epoch}.pth")
    torch.save(netD.state_dict(), f"{opt.outf}/netD_epoch_{epoch}.pth")
    torch.save(critic.state_dict(), f"{opt.outf}/critic.pth")

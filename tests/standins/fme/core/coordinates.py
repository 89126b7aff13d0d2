"""Where the data lies."""

import dataclasses

import torch


@dataclasses.dataclass
class LatLonCoordinates:
    lon: torch.Tensor
    lat: torch.Tensor

    @property
    def area_weights(self):
        rows = torch.deg2rad(self.lat).cos()[:, None].expand(self.shape)
        return rows / rows.sum()

    @property
    def shape(self):
        return len(self.lat), len(self.lon)


@dataclasses.dataclass
class HEALPixCoordinates:
    face: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    area_weights = None

    @property
    def shape(self):
        return len(self.face), len(self.width), len(self.height)


@dataclasses.dataclass
class HybridSigmaPressureCoordinate:
    ak: torch.Tensor
    bk: torch.Tensor

    def get_ak(self):
        return self.ak

    def get_bk(self):
        return self.bk

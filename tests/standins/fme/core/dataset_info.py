"""What a model knows of its data."""


class DatasetInfo:
    def __init__(self, horizontal_coordinates=None, vertical_coordinate=None, timestep=None):
        self.horizontal_coordinates = horizontal_coordinates
        self.atmosphere_vertical_coordinate = vertical_coordinate
        self.timestep = timestep

"""The decode round where every step stays on the device: fixed shapes, one captured graph a shape, one read-back a round."""

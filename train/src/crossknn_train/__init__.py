"""crossknn-train: cross-encoders, dual encoders and late-interaction models, trained and exported.

settings -> corpora -> task (labelled, late_interaction, distillation) -> loop.fit -> a folder in
torch, which opens with crossknn where this package is installed -> export -> an ONNX folder
"""

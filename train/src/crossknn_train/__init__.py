"""Train cross-encoders, dual encoders and late-interaction models, and export them to ONNX.

settings -> corpora -> task (labelled, late_interaction, distillation) -> loop.fit -> a torch
folder, which crossknn opens where this package is installed -> export -> an ONNX folder
"""

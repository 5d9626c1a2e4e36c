"""Training cross-encoders and dual encoders: one loop, one settings file.

settings -> corpora -> task (labelled, late_interaction, distillation) -> loop.fit -> folder
"""

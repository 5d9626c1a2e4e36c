"""Training cross-encoders and dual encoders (extra `torch`): one loop, one settings file.

corpora (data.labelled) -> negatives -> task (cross_encoder, dual_encoder) -> loop.fit -> folder
"""

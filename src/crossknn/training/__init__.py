"""Training cross-encoders and dual encoders (extra `torch`): one loop, one settings file.

corpora (data.reading) -> negatives -> task (cross_encoder, dual_encoder) -> loop.fit -> folder
"""

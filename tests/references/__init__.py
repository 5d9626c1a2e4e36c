"""The methods once more: NumPy, float64, plain and slow, written from papers and prose alone.

Nothing here imports the product, so that the product can be compared with it.
"""

"""`--quantize`: encoder.py rewrites traced graphs, generator.py has the weight formats of decode graphs.

Both use generator.py's int8 by rows; balance.py evens out outlier channels that int8 activations would represent badly.
"""

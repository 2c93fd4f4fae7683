"""Range indexes: search structures by order, written over an array module for every backend."""

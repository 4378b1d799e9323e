"""The face of the library: nodes, what they reach, what handlers see; and the threads, locks and clocks that the engine does without."""

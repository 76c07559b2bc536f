package plan

// Validate checks what can be checked of a call without its buffers, in a
// communicator of size ranks: kind, type, reduction, root, count, and that the
// size of the largest buffer in bytes fits an int. The error wraps ErrSpec.
func (s Spec) Validate(size int) error { return s.validate(World{Size: size}) }

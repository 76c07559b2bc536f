package plan

import (
	"github.com/gollective/gollective/dtype"
	"github.com/gollective/gollective/internal/reduce"
)

// Words packs s into two machine words, for memory that ranks share. InPlace,
// which is a rank's own business, is not among them.
func (s Spec) Words() [2]uint64 {
	return [2]uint64{
		uint64(s.Kind) | uint64(s.Type)<<8 | uint64(s.Op)<<16 | uint64(uint32(s.Root))<<32,
		uint64(s.Count),
	}
}

// SpecOfWords is the inverse of Spec.Words. It accepts any words: what comes of
// nonsense is a Spec with nonsense in it.
func SpecOfWords(w [2]uint64) Spec {
	return Spec{
		Kind:  Kind(w[0]),
		Type:  dtype.Type(w[0] >> 8),
		Op:    reduce.Op(w[0] >> 16),
		Root:  int(int32(w[0] >> 32)),
		Count: int(w[1]),
	}
}

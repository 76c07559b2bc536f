package reduce

import (
	"fmt"

	"github.com/gollective/gollective/dtype"
)

// Op is a reduction. The numbers are NCCL's (ncclRedOp_t in nccl.h).
type Op uint8

const (
	Sum       Op = 0
	Prod      Op = 1
	Max       Op = 2
	Min       Op = 3
	Avg       Op = 4
	PreMulSum Op = 5 // each rank's own input times its own scalar, then Sum
	opsCount     = 6
)

var opNames = [opsCount]string{"sum", "prod", "max", "min", "avg", "mulsum"}

// Valid reports whether op is one of the six reductions.
func (op Op) Valid() bool { return op < opsCount }

// String is the name nccl-tests prints.
func (op Op) String() string {
	if !op.Valid() {
		return fmt.Sprintf("op(%d)", uint8(op))
	}
	return opNames[op]
}

// ParseOp is the inverse of String.
func ParseOp(name string) (Op, error) {
	for op, n := range opNames {
		if n == name {
			return Op(op), nil
		}
	}
	return 0, fmt.Errorf("unknown reduction %q", name)
}

// Scalar is the factor of a PreMulSum: the bit pattern of one element of Type,
// in the low bytes of Bits.
type Scalar struct {
	Type dtype.Type
	Bits uint64
}

// NeedsScalar reports whether op takes a Scalar.
func (op Op) NeedsScalar() bool { return op == PreMulSum }

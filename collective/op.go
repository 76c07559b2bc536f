package collective

import (
	"fmt"

	"github.com/gollective/gollective/internal/reduce"
)

// Op is a reduction. Integers wrap around on overflow. Sums and products of
// 16- and 8-bit floats are formed in float32 within one reduction step and
// rounded once.
type Op struct {
	code   reduce.Op
	scalar reduce.Scalar
}

// The reductions of NCCL (ncclRedOp_t in nccl.h).
var (
	Sum  = Op{code: reduce.Sum}
	Prod = Op{code: reduce.Prod}
	// Min and Max propagate NaN: if any rank's element is NaN, the result is
	// the quiet NaN. -0 is less than +0.
	Min = Op{code: reduce.Min}
	Max = Op{code: reduce.Max}
	// Avg of floats multiplies each rank's element by 1/n, rounded into the
	// element type, and sums: it differs in the last bits from a sum divided
	// by n. Avg of integers divides the sum by n and truncates toward zero.
	//
	// NCCL: hostToDevRedOp in src/enqueue.cc.
	Avg = Op{code: reduce.Avg}
)

// PreMulSum sums the ranks' elements, each multiplied by its rank's own scalar
// first. The call's element type must be T.
//
// NCCL: ncclRedOpCreatePreMulSum.
func PreMulSum[T Number](scalar T) Op {
	return Op{code: reduce.PreMulSum, scalar: reduce.Scalar{Type: typeOf[T](), Bits: bitsOf(scalar)}}
}

// String is the name nccl-tests prints: sum, prod, min, max, avg or mulsum.
func (op Op) String() string { return op.code.String() }

// ParseOp is the inverse of Op.String for the operations without a scalar.
func ParseOp(name string) (Op, error) {
	code, err := reduce.ParseOp(name)
	if err != nil {
		return Op{}, err
	}
	if code == reduce.PreMulSum {
		return Op{}, fmt.Errorf("reduction %q needs a scalar: use PreMulSum", name)
	}
	return Op{code: code}, nil
}

// OpOf makes an Op of its parts, for tools that take them from a command line.
func OpOf(code reduce.Op, scalar reduce.Scalar) Op { return Op{code, scalar} }

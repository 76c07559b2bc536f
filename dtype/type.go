// Package dtype names the element types that collectives work on and holds the
// four small floating point formats that Go has no type for.
package dtype

import "fmt"

// Type is an element type. The numbers are NCCL's (ncclDataType_t in nccl.h).
type Type uint8

const (
	Int8       Type = 0
	Uint8      Type = 1
	Int32      Type = 2
	Uint32     Type = 3
	Int64      Type = 4
	Uint64     Type = 5
	Half       Type = 6 // IEEE 754 binary16, held in Float16
	Float32    Type = 7
	Float64    Type = 8
	Bfloat     Type = 9  // upper half of a float32, held in BFloat16
	F8E4M3     Type = 10 // OCP 8-bit float, held in Float8E4M3
	F8E5M2     Type = 11 // OCP 8-bit float, held in Float8E5M2
	typesCount      = 12
)

var types = [typesCount]struct {
	name string
	size int
}{
	Int8: {"int8", 1}, Uint8: {"uint8", 1},
	Int32: {"int32", 4}, Uint32: {"uint32", 4},
	Int64: {"int64", 8}, Uint64: {"uint64", 8},
	Half: {"half", 2}, Float32: {"float", 4}, Float64: {"double", 8},
	Bfloat: {"bfloat16", 2}, F8E4M3: {"f8e4m3", 1}, F8E5M2: {"f8e5m2", 1},
}

// All lists every type in NCCL's order.
func All() []Type {
	all := make([]Type, typesCount)
	for i := range all {
		all[i] = Type(i)
	}
	return all
}

// Valid reports whether t is one of the twelve types.
func (t Type) Valid() bool { return t < typesCount }

// Size is the size of one element in bytes, 0 for an invalid type.
func (t Type) Size() int {
	if !t.Valid() {
		return 0
	}
	return types[t].size
}

// Integer reports whether t is one of the six integer types.
func (t Type) Integer() bool { return t <= Uint64 }

// Float reports whether t is one of the six floating point types.
func (t Type) Float() bool { return t > Uint64 && t.Valid() }

// String is the name nccl-tests prints: int8, uint8, int32, uint32, int64,
// uint64, half, float, double, bfloat16, f8e4m3 or f8e5m2.
func (t Type) String() string {
	if !t.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(t))
	}
	return types[t].name
}

// Parse is the inverse of String.
func Parse(name string) (Type, error) {
	for t := range types {
		if types[t].name == name {
			return Type(t), nil
		}
	}
	return 0, fmt.Errorf("unknown element type %q", name)
}

package collective

import (
	"reflect"
	"unsafe"

	"github.com/gollective/gollective/dtype"
)

// Number is the element type of a buffer: NCCL's integers and floats, the four
// small floats of package dtype, and named types of the former. int and uint
// travel as their 64-bit (or 32-bit) kin.
type Number interface {
	~int8 | ~uint8 | ~int32 | ~uint32 | ~int64 | ~uint64 | ~int | ~uint |
		~float32 | ~float64 | dtype.Float16 | dtype.BFloat16
}

// typeOf maps T to its element type. Float8E4M3 and Float8E5M2 satisfy Number as
// types of kind uint8 and are told apart from it by their identity.
func typeOf[T Number]() dtype.Type {
	var zero T
	switch any(zero).(type) {
	case float32:
		return dtype.Float32
	case float64:
		return dtype.Float64
	case int64:
		return dtype.Int64
	case int32:
		return dtype.Int32
	case dtype.Float16:
		return dtype.Half
	case dtype.BFloat16:
		return dtype.Bfloat
	case dtype.Float8E4M3:
		return dtype.F8E4M3
	case dtype.Float8E5M2:
		return dtype.F8E5M2
	}
	switch reflect.TypeFor[T]().Kind() {
	case reflect.Int8:
		return dtype.Int8
	case reflect.Uint8:
		return dtype.Uint8
	case reflect.Int32:
		return dtype.Int32
	case reflect.Uint32:
		return dtype.Uint32
	case reflect.Int64:
		return dtype.Int64
	case reflect.Uint64:
		return dtype.Uint64
	case reflect.Float32:
		return dtype.Float32
	case reflect.Float64:
		return dtype.Float64
	case reflect.Int:
		if unsafe.Sizeof(zero) == 4 {
			return dtype.Int32
		}
		return dtype.Int64
	default: // reflect.Uint: the constraint allows no other kind
		if unsafe.Sizeof(zero) == 4 {
			return dtype.Uint32
		}
		return dtype.Uint64
	}
}

package dtype

// Whole slices. dst and src have the same length and do not overlap; results are
// those of the conversions of single values.

// WidenFloat16 stores the value of src[i] in dst[i].
func WidenFloat16(dst []float32, src []Float16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i].Float32()
	}
}

// NarrowFloat16 stores src[i], rounded, in dst[i].
func NarrowFloat16(dst []Float16, src []float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = ToFloat16(src[i])
	}
}

// WidenBFloat16 stores the value of src[i] in dst[i].
func WidenBFloat16(dst []float32, src []BFloat16) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i].Float32()
	}
}

// NarrowBFloat16 stores src[i], rounded, in dst[i].
func NarrowBFloat16(dst []BFloat16, src []float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = ToBFloat16(src[i])
	}
}

// WidenFloat8E4M3 stores the value of src[i] in dst[i].
func WidenFloat8E4M3(dst []float32, src []Float8E4M3) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i].Float32()
	}
}

// NarrowFloat8E4M3 stores src[i], rounded, in dst[i].
func NarrowFloat8E4M3(dst []Float8E4M3, src []float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = ToFloat8E4M3(src[i])
	}
}

// WidenFloat8E5M2 stores the value of src[i] in dst[i].
func WidenFloat8E5M2(dst []float32, src []Float8E5M2) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = src[i].Float32()
	}
}

// NarrowFloat8E5M2 stores src[i], rounded, in dst[i].
func NarrowFloat8E5M2(dst []Float8E5M2, src []float32) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = ToFloat8E5M2(src[i])
	}
}

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

var amd64 = &machine{
	Arch: "amd64", Constraint: "!purego && !race", Suffix: "AVX2", vector: wide,
	dst: "DI", also: "R8", a: "SI", b: "DX", n: "CX", factor: "X8",
	load: "MOVQ", loadFactor: "VMOVQ", advance: "ADDQ",
	past: map[string]string{"VMOVDQU": "VMOVNTDQ"},
}

func sortedNames() []string { return slices.Sorted(maps.Keys(constants)) }

// In the code below Y0 to Y7 are scratch; Y8 holds the factor of a scale; Y9 to Y15
// hold constants through the whole loop. Comparisons with predicate 3 give all ones
// where an operand is a NaN. Go writes sources in reverse order: the result of
// VPSUBD b, a, d is a-b; VPCMPGTB b, a, d asks a > b; a blend takes its first vector
// where the mask is set.

const wide = 32 // bytes of a vector

func amd64Kernels() []kernel {
	var all []kernel
	all = append(all, arithmetic()...)
	all = append(all, order()...)
	for _, k := range slices.Clone(all) {
		if k.Kind == "combine" {
			all = append(all, k.paired())
		}
	}
	all = append(all, copying())
	for _, k := range slices.Clone(all) {
		if k.vectors() && k.Kind != "scale" {
			all = append(all, k.streamed())
		}
	}
	all = slices.DeleteFunc(all, func(k kernel) bool { return k.Kind == "copy" && !k.streams })
	return append(all, conversions()...)
}

// vectors reports whether all stores are of 16 bytes or more. Others, sums and
// products of 8-bit floats, take longer than memory does.
func (k kernel) vectors() bool {
	return !slices.ContainsFunc(k.body(place{on: amd64}), func(line string) bool { return strings.HasPrefix(line, "VMOVQ") })
}

// copying has no Go twin but copy.
func copying() kernel {
	return amd64.kernel("copy", "copy", "", nil, func(at place) []string {
		return append([]string{"VMOVDQU " + at.x(0) + ", Y0"}, at.put("VMOVDQU", "Y0", 0)...)
	})
}

// hold sets a register to a constant for the whole loop.
func hold(register string, bits int, value uint64) string {
	return "VMOVDQU " + vector(bits, value) + ", " + register
}

// broadcast fills Y8 with the factor, which Prologue has put into X8.
func broadcast(bits int) string {
	letter := map[int]string{8: "B", 16: "W", 32: "D", 64: "Q"}[bits]
	return "VPBROADCAST" + letter + " X8, Y8"
}

// number is a type that has instructions or can be composed of a few. The body of
// its sum and product ends with the result in Y0; b is an operand in memory or a
// register.
type number struct {
	name, suffix string // of kernels and of the table's routines
	bits         int
	types        string // dtypes that share the scale
	add          string // instruction
	mul          func(b string) []string
	setup        []string // of mul
}

func single(instruction string) func(string) []string {
	return func(b string) []string { return []string{instruction + " " + b + ", Y0, Y0"} }
}

// mulBytes multiplies even bytes where they are and odd ones shifted down: the low
// byte of a product depends on the low bytes of its factors only.
func mulBytes(b string) []string {
	return []string{
		"VMOVDQU " + b + ", Y1",
		"VPMULLW Y1, Y0, Y2", "VPSRLW $8, Y0, Y0", "VPSRLW $8, Y1, Y1", "VPMULLW Y1, Y0, Y0",
		"VPSLLW $8, Y0, Y0", "VPAND Y15, Y2, Y2", "VPOR Y2, Y0, Y0",
	}
}

// mulQuads adds both cross products of 32 bits, shifted up, to the product of the
// lower halves.
func mulQuads(b string) []string {
	return []string{
		"VMOVDQU " + b + ", Y1",
		"VPSHUFD $0xb1, Y1, Y2", "VPMULLD Y2, Y0, Y2", "VPSRLQ $32, Y2, Y3", "VPADDD Y3, Y2, Y2",
		"VPSLLQ $32, Y2, Y2", "VPMULUDQ Y1, Y0, Y0", "VPADDQ Y2, Y0, Y0",
	}
}

var numbers = []number{
	{"Bytes", "8", 8, "dtype.Int8, dtype.Uint8", "VPADDB", mulBytes, []string{hold("Y15", 16, 0xff)}},
	{"Words", "32", 32, "dtype.Int32, dtype.Uint32", "VPADDD", single("VPMULLD"), nil},
	{"Quads", "64", 64, "dtype.Int64, dtype.Uint64", "VPADDQ", mulQuads, nil},
	{"Float32", "Float32", 32, "dtype.Float32", "VADDPS", single("VMULPS"), nil},
	{"Float64", "Float64", 64, "dtype.Float64", "VADDPD", single("VMULPD"), nil},
}

// arithmetic is sums, products and scales.
func arithmetic() []kernel {
	var all []kernel
	for _, t := range numbers {
		with := func(op func(string) []string, b func(place) string) func(place) []string {
			return func(at place) []string {
				lines := append([]string{"VMOVDQU " + at.x(0) + ", Y0"}, op(b(at))...)
				return append(lines, at.put("VMOVDQU", "Y0", 0)...)
			}
		}
		memory := func(at place) string { return at.y(0) }
		factor := func(place) string { return "Y8" }
		all = append(all,
			amd64.kernel("combine", "add"+t.name, "add"+t.suffix, nil, with(single(t.add), memory)),
			amd64.kernel("combine", "mul"+t.name, "mul"+t.suffix, t.setup, with(t.mul, memory)),
			amd64.kernel("scale", "scale"+t.name, t.types, append([]string{broadcast(t.bits)}, t.setup...), with(t.mul, factor)),
		)
	}
	for _, f := range smallFloats {
		all = append(all, f.kernel("add", "VADDPS"), f.kernel("mul", "VMULPS"), f.scale())
	}
	return all
}

// order is maxima and minima.
func order() []kernel {
	var all []kernel
	add := func(name string, setup []string, body func(operation string) []string) {
		for _, operation := range []string{"max", "min"} {
			lines := body(operation)
			all = append(all, amd64.kernel("combine", operation+name, operation+name, setup, func(at place) []string {
				code := []string{"VMOVDQU " + at.x(0) + ", Y0", "VMOVDQU " + at.y(0) + ", Y1"}
				return append(append(code, lines...), at.put("VMOVDQU", "Y2", 0)...)
			}))
		}
	}
	for name, letters := range map[string]string{"Int8": "SB", "Uint8": "UB", "Int32": "SD", "Uint32": "UD"} {
		add(name, nil, func(operation string) []string { return []string{extreme(operation, letters) + " Y1, Y0, Y2"} })
	}
	add("Int64", nil, func(operation string) []string {
		return append([]string{"VPCMPGTQ Y1, Y0, Y3"}, pick(operation))
	})
	// Signs flipped, unsigned numbers compare as signed ones do.
	add("Uint64", []string{hold("Y15", 64, 1<<63)}, func(operation string) []string {
		return []string{"VPXOR Y15, Y0, Y4", "VPXOR Y15, Y1, Y5", "VPCMPGTQ Y5, Y4, Y3", pick(operation)}
	})
	add("Float32", []string{hold("Y15", 32, 0x7fc00000)}, func(operation string) []string { return orderFloats(operation, "PS") })
	add("Float64", []string{hold("Y15", 64, 0x7ff8000000000000)}, func(operation string) []string { return orderFloats(operation, "PD") })
	for _, f := range smallFloats {
		top := f.infinity
		setup := []string{hold("Y15", f.bits, 1<<(f.bits-1)-1), hold("Y14", f.bits, top), hold("Y13", f.bits, f.nan)}
		add(f.name, setup, f.order)
	}
	slices.SortStableFunc(all, func(a, b kernel) int { return compare(a.Name, b.Name) })
	return all
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// extreme is the instruction for the extreme of two integers.
func extreme(operation, letters string) string {
	if operation == "max" {
		return "VPMAX" + letters
	}
	return "VPMIN" + letters
}

// pick takes Y0 or Y1; Y3 says where Y0 is greater.
func pick(operation string) string {
	if operation == "max" {
		return "VBLENDVPD Y3, Y0, Y1, Y2"
	}
	return "VBLENDVPD Y3, Y1, Y0, Y2"
}

// orderFloats: the instruction gives its second operand when both are zeros. Taken
// both ways it gives both, whose conjunction is +0 and whose disjunction is -0; other
// numbers come out alike both ways.
func orderFloats(operation, letters string) []string {
	instruction, join := "VMAX"+letters, "VAND"+letters
	if operation == "min" {
		instruction, join = "VMIN"+letters, "VOR"+letters
	}
	return []string{
		instruction + " Y1, Y0, Y2", instruction + " Y0, Y1, Y3", join + " Y3, Y2, Y2",
		"VCMP" + letters + " $3, Y1, Y0, Y3", "VBLENDV" + letters + " Y3, Y15, Y2, Y2",
	}
}

// smallFloat is a float of 8 or 16 bits.
type smallFloat struct {
	name, typ string
	bits      int
	infinity  uint64 // the greatest magnitude that is no NaN
	nan       uint64
	// Eight elements, from memory to Y0 or Y1 as float32 (over the X register of the
	// same number), and from Y0 to the result.
	widen  func(from, register string) []string
	narrow func(at place, offset int) []string
}

var smallFloats = []smallFloat{
	{"Half", "dtype.Half", 16, 0x7c00, 0x7e00, widenHalf, narrowHalf},
	{"Bfloat", "dtype.Bfloat", 16, 0x7f80, 0x7fc0, widenBfloat, narrowBfloat},
	{"E4M3", "dtype.F8E4M3", 8, 0x7e, 0x7f, widenE4M3, func(at place, offset int) []string { return quantise(e4m3, at, offset) }},
	{"E5M2", "dtype.F8E5M2", 8, 0x7c, 0x7e, widenE5M2, func(at place, offset int) []string { return quantise(e5m2, at, offset) }},
}

// order compares patterns as signed integers; those of two negative numbers are
// ordered the other way round. Y15 holds the magnitude's bits, Y14 the greatest
// number, Y13 the NaN.
func (f smallFloat) order(operation string) []string {
	letter := map[int]string{8: "B", 16: "W"}[f.bits]
	lines := []string{"VPMAXS" + letter + " Y1, Y0, Y2", "VPMINS" + letter + " Y1, Y0, Y3"}
	mask := "Y2" // whose top bits of bytes are set where both are negative
	if f.bits == 16 {
		lines, mask = append(lines, "VPSRAW $15, Y2, Y4"), "Y4"
	}
	if operation == "max" {
		lines = append(lines, "VPBLENDVB "+mask+", Y3, Y2, Y2")
	} else {
		lines = append(lines, "VPBLENDVB "+mask+", Y2, Y3, Y2")
	}
	return append(lines,
		"VPAND Y15, Y0, Y0", "VPAND Y15, Y1, Y1", "VPMAXS"+letter+" Y1, Y0, Y0",
		"VPCMPGT"+letter+" Y14, Y0, Y0", "VPBLENDVB Y0, Y13, Y2, Y2",
	)
}

// kernel combines two operands in float32.
func (f smallFloat) kernel(name, instruction string) kernel {
	k := amd64.kernel("combine", name+f.name, name+f.name, f.setup(), nil)
	k.body = func(at place) []string {
		if f.name == "Bfloat" {
			return combineBfloat(at, instruction, false)
		}
		var lines []string
		for o := 0; o < wide; o += f.bits {
			lines = append(append(lines, f.widen(at.x(o), "0")...), f.widen(at.y(o), "1")...)
			lines = append(append(lines, instruction+" Y1, Y0, Y0"), f.narrow(at, o)...)
		}
		return lines
	}
	return k
}

// scale multiplies by a float32.
func (f smallFloat) scale() kernel {
	k := amd64.kernel("scale", "scale"+f.name, f.typ, append([]string{broadcast(32)}, f.setup()...), nil)
	k.body = func(at place) []string {
		if f.name == "Bfloat" {
			return combineBfloat(at, "VMULPS", true)
		}
		var lines []string
		for o := 0; o < wide; o += f.bits {
			lines = append(lines, f.widen(at.x(o), "0")...)
			lines = append(append(lines, "VMULPS Y8, Y0, Y0"), f.narrow(at, o)...)
		}
		return lines
	}
	return k
}

// conversions are those of folds over more than two operands.
func conversions() []kernel {
	var all []kernel
	for _, f := range smallFloats {
		widen := amd64.kernel("widen", "widen"+f.name, f.typ, nil, func(at place) []string {
			return append(f.widen(at.x(0), "0"), at.put("VMOVDQU", "Y0", 0)...)
		})
		narrow := amd64.kernel("narrow", "narrow"+f.name, f.typ, f.setup(), func(at place) []string {
			return append([]string{"VMOVDQU " + at.x(0) + ", Y0"}, f.narrow(at, 0)...)
		})
		widen.in, narrow.out = f.bits, f.bits // eight elements
		all = append(all, widen, narrow)
	}
	return all
}

// setup holds float32's canonical NaN, and what rounds a bfloat16.
func (f smallFloat) setup() []string {
	switch f.name {
	case "Half":
		return []string{hold("Y12", 32, 0x7fc00000)}
	case "Bfloat":
		return []string{hold("Y12", 32, 0x7fc00000), hold("Y13", 32, 1), hold("Y14", 32, 0x7fff), hold("Y15", 32, 0xffff0000)}
	}
	return nil
}

func widenHalf(from, register string) []string {
	return []string{"VCVTPH2PS " + from + ", Y" + register}
}

func narrowHalf(at place, offset int) []string {
	return append([]string{"VCMPPS $3, Y0, Y0, Y2", "VBLENDVPS Y2, Y12, Y0, Y0", "VCVTPS2PH $0, Y0, X0"},
		at.put("VMOVDQU", "X0", offset)...)
}

func widenBfloat(from, register string) []string {
	y := "Y" + register
	return []string{"VPMOVZXWD " + from + ", " + y, "VPSLLD $16, " + y + ", " + y}
}

// roundBfloat rounds a float32 so that its upper half is the bfloat16.
func roundBfloat(y string) []string {
	return []string{
		"VCMPPS $3, " + y + ", " + y + ", Y6", "VPSRLD $16, " + y + ", Y7", "VPAND Y13, Y7, Y7", "VPADDD Y14, Y7, Y7",
		"VPADDD Y7, " + y + ", " + y, "VBLENDVPS Y6, Y12, " + y + ", " + y,
	}
}

func narrowBfloat(at place, offset int) []string {
	lines := append(roundBfloat("Y0"), "VPSRLD $16, Y0, Y0", "VEXTRACTI128 $1, Y0, X1", "VPACKUSDW X1, X0, X0")
	return append(lines, at.put("VMOVDQU", "X0", offset)...)
}

// combineBfloat takes the even and the odd elements of a vector apart: the one are
// shifted up, the others have their neighbours masked out. Nothing crosses lanes.
func combineBfloat(at place, instruction string, scale bool) []string {
	lines := []string{"VMOVDQU " + at.x(0) + ", Y0", "VPSLLD $16, Y0, Y2", "VPAND Y15, Y0, Y0"}
	even, odd := "Y8", "Y8"
	if !scale {
		lines = append(lines, "VMOVDQU "+at.y(0)+", Y1", "VPSLLD $16, Y1, Y3", "VPAND Y15, Y1, Y1")
		even, odd = "Y3", "Y1"
	}
	lines = append(lines, instruction+" "+even+", Y2, Y2", instruction+" "+odd+", Y0, Y0")
	lines = append(append(lines, roundBfloat("Y2")...), roundBfloat("Y0")...)
	lines = append(lines, "VPSRLD $16, Y2, Y2", "VPBLENDW $0xaa, Y0, Y2, Y2")
	return append(lines, at.put("VMOVDQU", "Y2", 0)...)
}

// widenE5M2: an E5M2 is the upper half of a float16.
func widenE5M2(from, register string) []string {
	x, y := "X"+register, "Y"+register
	return []string{"VPMOVZXBW " + from + ", " + x, "VPSLLW $8, " + x + ", " + x, "VCVTPH2PS " + x + ", " + y}
}

// widenE4M3 makes float16s of the same exponent fields, whose bias is greater by 8.
// What comes out as 480 is the NaN.
func widenE4M3(from, register string) []string {
	x, y := "X"+register, "Y"+register
	return []string{
		"VPMOVZXBW " + from + ", " + x, "VPSLLW $8, " + x + ", " + x, "VPSRAW $1, " + x + ", " + x,
		"VPAND " + vector(16, 0xbf80) + ", " + x + ", " + x,
		"VCVTPH2PS " + x + ", " + y, "VMULPS " + vector(32, 0x43800000) + ", " + y + ", " + y,
		"VPAND " + vector(32, 0x7fffffff) + ", " + y + ", Y2", "VPCMPEQD " + vector(32, 0x43f00000) + ", Y2, Y2", "VPOR Y2, " + y + ", " + y,
	}
}

// octet is a format of 8 bits as dtype's quantise describes it.
type octet struct{ least, most, drop, nan uint64 }

var (
	e4m3 = octet{(127 - 6) << 23, (127+8)<<23 | 0x60<<16, 20, 0x7f}
	e5m2 = octet{(127 - 14) << 23, (127+15)<<23 | 0x60<<16, 21, 0x7e}
)

// quantise is dtype's, eight at a time: an addition rounds.
func quantise(f octet, at place, offset int) []string {
	excess := f.drop<<23 + f.least>>f.drop
	lines := []string{
		"VCMPPS $3, Y0, Y0, Y2",
		"VPSRLD $24, Y0, Y1", "VPAND " + vector(32, 0x80) + ", Y1, Y1",
		"VPAND " + vector(32, 0x7fffffff) + ", Y0, Y0", "VPMINUD " + vector(32, f.most) + ", Y0, Y0",
		"VPAND " + vector(32, 0x7f800000) + ", Y0, Y3", "VPMAXUD " + vector(32, f.least) + ", Y3, Y3",
		"VPADDD " + vector(32, f.drop<<23) + ", Y3, Y4", "VADDPS Y4, Y0, Y0",
		"VPSUBD Y3, Y0, Y0", fmt.Sprintf("VPSRLD $%d, Y3, Y3", f.drop), "VPADDD Y3, Y0, Y0",
		"VPSUBD " + vector(32, excess) + ", Y0, Y0", "VPOR Y1, Y0, Y0",
		"VBLENDVPS Y2, " + vector(32, f.nan) + ", Y0, Y0",
		"VEXTRACTI128 $1, Y0, X1", "VPACKUSDW X1, X0, X0", "VPACKUSWB X0, X0, X0",
	}
	return append(lines, at.put("VMOVQ", "X0", offset)...)
}

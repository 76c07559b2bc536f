package main

import (
	"fmt"
	"slices"
)

// Go 1.26's assembler lacks most vector arithmetic.
var arm64 = &machine{
	Arch: "arm64", Constraint: "go1.27 && !purego && !race", Suffix: "NEON", vector: 16,
	dst: "R0", also: "R1", a: "R2", b: "R3", n: "R4", factor: "R5",
	load: "MOVD", loadFactor: "MOVD", advance: "ADD",
}

// In the code below V0 and V1 hold operands (F0 is V0's name where memory is loaded or
// stored), V2 gets the result, V3 to V7 are scratch; V8 holds the factor of a scale;
// V12 to V15 hold constants through the whole loop. Go writes sources in reverse
// order: VCMGT b, a, d asks a > b; VBSL b, a, d takes a where d is set; VBIT m, a, d
// takes a where m is set, and leaves d elsewhere.

// arm64Kernels are those that a few instructions make: there is no multiplication of
// 64 bits, and the assembler has no conversion from float16.
func arm64Kernels() []kernel {
	all := append(neonArithmetic(), neonOrder()...)
	for _, k := range slices.Clone(all) {
		if k.Kind == "combine" {
			all = append(all, k.paired())
		}
	}
	return append(all, neonConversions()...)
}

// lanes names the arrangement of elements of so many bits.
func lanes(bits int) string { return map[int]string{8: "B16", 16: "H8", 32: "S4", 64: "D2"}[bits] }

// three is an instruction on whole registers: d = a op b.
func three(instruction string, bits int, b, a, d string) string {
	l := lanes(bits)
	return fmt.Sprintf("%s %s.%s, %s.%s, %s.%s", instruction, b, l, a, l, d, l)
}

// bitwise is three on bytes.
func bitwise(instruction, b, a, d string) string { return three(instruction, 8, b, a, d) }

// fill sets all elements of a register for the whole loop.
func fill(register string, bits int, value uint64) []string {
	return []string{fmt.Sprintf("MOVD $0x%x, R6", value), fmt.Sprintf("VDUP R6, %s.%s", register, lanes(bits))}
}

// spreadFactor fills V8 with the factor.
func spreadFactor(bits int) []string { return []string{"VDUP R5, V8." + lanes(bits)} }

// neonCombine is a kernel whose lines make V2 of V0 and V1.
func neonCombine(name, of string, setup, lines []string) kernel {
	return arm64.kernel("combine", name, of, setup, func(at place) []string {
		code := []string{"FMOVQ " + at.x(0) + ", F0", "FMOVQ " + at.y(0) + ", F1"}
		return append(append(code, lines...), at.put("FMOVQ", "F2", 0)...)
	})
}

// neonScale is a kernel whose lines make V2 of V0 and V8.
func neonScale(name, types string, setup, lines []string) kernel {
	return arm64.kernel("scale", name, types, setup, func(at place) []string {
		code := append([]string{"FMOVQ " + at.x(0) + ", F0"}, lines...)
		return append(code, at.put("FMOVQ", "F2", 0)...)
	})
}

// neonArithmetic is sums, products and scales.
func neonArithmetic() []kernel {
	var all []kernel
	for _, t := range []struct {
		name, suffix string // of kernels and of the table's routines
		bits         int
		types        string
		add, mul     string
	}{
		{"Bytes", "8", 8, "dtype.Int8, dtype.Uint8", "VADD", "VMUL"},
		{"Words", "32", 32, "dtype.Int32, dtype.Uint32", "VADD", "VMUL"},
		{"Quads", "64", 64, "", "VADD", ""},
		{"Float32", "Float32", 32, "dtype.Float32", "VFADD", "VFMUL"},
		{"Float64", "Float64", 64, "dtype.Float64", "VFADD", "VFMUL"},
	} {
		all = append(all, neonCombine("add"+t.name, "add"+t.suffix, nil, []string{three(t.add, t.bits, "V1", "V0", "V2")}))
		if t.mul == "" {
			continue
		}
		all = append(all,
			neonCombine("mul"+t.name, "mul"+t.suffix, nil, []string{three(t.mul, t.bits, "V1", "V0", "V2")}),
			neonScale("scale"+t.name, t.types, spreadFactor(t.bits), []string{three(t.mul, t.bits, "V8", "V0", "V2")}),
		)
	}
	return append(all,
		neonCombine("addBfloat", "addBfloat", neonRounding(), neonBfloats("VFADD", false)),
		neonCombine("mulBfloat", "mulBfloat", neonRounding(), neonBfloats("VFMUL", false)),
		neonScale("scaleBfloat", "dtype.Bfloat", append(spreadFactor(32), neonRounding()...), neonBfloats("VFMUL", true)),
	)
}

// neonOrder is maxima and minima.
func neonOrder() []kernel {
	var all []kernel
	add := func(name string, setup []string, lines func(operation string) []string) {
		for _, operation := range []string{"max", "min"} {
			all = append(all, neonCombine(operation+name, operation+name, setup, lines(operation)))
		}
	}
	upper := map[string]string{"max": "MAX", "min": "MIN"}
	for _, t := range []struct {
		name, letter string
		bits         int
	}{{"Int8", "S", 8}, {"Uint8", "U", 8}, {"Int32", "S", 32}, {"Uint32", "U", 32}} {
		add(t.name, nil, func(operation string) []string {
			return []string{three("V"+t.letter+upper[operation], t.bits, "V1", "V0", "V2")}
		})
	}
	for name, comparison := range map[string]string{"Int64": "VCMGT", "Uint64": "VCMHI"} {
		add(name, nil, func(operation string) []string {
			greater, less := "V0", "V1"
			if operation == "min" {
				greater, less = less, greater
			}
			return []string{three(comparison, 64, "V1", "V0", "V2"), bitwise("VBSL", less, greater, "V2")}
		})
	}
	// The instructions hold -0 for less than +0 and give some NaN when an operand is one.
	for _, t := range []struct {
		name string
		bits int
		nan  uint64
	}{{"Float32", 32, 0x7fc00000}, {"Float64", 64, 0x7ff8000000000000}} {
		add(t.name, fill("V15", t.bits, t.nan), func(operation string) []string {
			return []string{
				three("VF"+upper[operation], t.bits, "V1", "V0", "V3"),
				three("VFCMEQ", t.bits, "V3", "V3", "V2"), bitwise("VBSL", "V15", "V3", "V2"),
			}
		})
	}
	for _, f := range smallFloats {
		setup := slices.Concat(fill("V15", f.bits, 1<<(f.bits-1)-1), fill("V14", f.bits, f.infinity), fill("V13", f.bits, f.nan))
		add(f.name, setup, f.neonOrder)
	}
	slices.SortStableFunc(all, func(a, b kernel) int { return compare(a.Name, b.Name) })
	return all
}

// neonOrder is order with other instructions.
func (f smallFloat) neonOrder(operation string) []string {
	negative, other := "V4", "V3" // V3 is the greater pattern, V4 the smaller one
	if operation == "min" {
		negative, other = other, negative
	}
	return []string{
		three("VSMAX", f.bits, "V1", "V0", "V3"), three("VSMIN", f.bits, "V1", "V0", "V4"),
		fmt.Sprintf("VSSHR $%d, V3.%s, V2.%s", f.bits-1, lanes(f.bits), lanes(f.bits)), // set where both are negative
		bitwise("VBSL", other, negative, "V2"),
		bitwise("VAND", "V15", "V0", "V0"), bitwise("VAND", "V15", "V1", "V1"), three("VSMAX", f.bits, "V1", "V0", "V0"),
		three("VCMGT", f.bits, "V14", "V0", "V0"), bitwise("VBIT", "V0", "V13", "V2"),
	}
}

// neonRounding holds what neonRound needs.
func neonRounding() []string {
	return slices.Concat(fill("V12", 32, 0x7fc00000), fill("V13", 32, 1), fill("V14", 32, 0x7fff), fill("V15", 32, 0xffff0000))
}

// neonRound rounds a float32 so that its upper half is the bfloat16.
func neonRound(v string) []string {
	return []string{
		three("VFCMEQ", 32, v, v, "V6"), fmt.Sprintf("VUSHR $16, %s.S4, V7.S4", v), bitwise("VAND", "V13", "V7", "V7"),
		three("VADD", 32, "V14", "V7", "V7"), three("VADD", 32, "V7", v, v), bitwise("VBIF", "V6", "V12", v),
	}
}

// neonBfloats is combineBfloat with other instructions: even elements are in V2, odd
// ones in V0.
func neonBfloats(instruction string, scale bool) []string {
	lines := []string{"VSHL $16, V0.S4, V2.S4", bitwise("VAND", "V15", "V0", "V0")}
	even, odd := "V8", "V8"
	if !scale {
		lines = append(lines, "VSHL $16, V1.S4, V3.S4", bitwise("VAND", "V15", "V1", "V1"))
		even, odd = "V3", "V1"
	}
	lines = append(lines, three(instruction, 32, even, "V2", "V2"), three(instruction, 32, odd, "V0", "V0"))
	lines = append(append(lines, neonRound("V2")...), neonRound("V0")...)
	return append(lines, "VUSHR $16, V2.S4, V2.S4", bitwise("VBIT", "V15", "V0", "V2"))
}

// neonConversions are those of folds over more than two operands, eight elements at a
// time.
func neonConversions() []kernel {
	widen := arm64.kernel("widen", "widenBfloat", "dtype.Bfloat", nil, func(at place) []string {
		lines := []string{
			"FMOVQ " + at.x(0) + ", F0", "VUSHLL $0, V0.H4, V1.S4", "VUSHLL2 $0, V0.H8, V2.S4",
			"VSHL $16, V1.S4, V1.S4", "VSHL $16, V2.S4, V2.S4",
		}
		return append(append(lines, at.put("FMOVQ", "F1", 0)...), at.put("FMOVQ", "F2", 16)...)
	})
	narrow := arm64.kernel("narrow", "narrowBfloat", "dtype.Bfloat", neonRounding(), func(at place) []string {
		lines := []string{"FMOVQ " + at.x(0) + ", F0", "FMOVQ " + at.x(16) + ", F1"}
		lines = append(append(lines, neonRound("V0")...), neonRound("V1")...)
		return append(append(lines, three("VUZP2", 16, "V1", "V0", "V2")), at.put("FMOVQ", "F2", 0)...)
	})
	widen.out, narrow.in = 32, 32
	return []kernel{widen, narrow}
}

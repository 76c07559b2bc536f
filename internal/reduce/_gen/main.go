// Command _gen writes the assembly kernels of internal/reduce and the Go
// declarations that go with them: kernels_amd64.s and kernels_amd64.go in the
// directory above. It is a module of its own, so that no build of the library
// sees it. From the top of the repository:
//
//	go -C internal/reduce/_gen run .
//
// What a kernel computes from one vector is in kernels.go; this file puts loops
// around it.
package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"
	"text/template"
)

//go:embed amd64.s.tmpl
var assembly string

//go:embed amd64.go.tmpl
var declarations string

// kernel is one assembly function. A turn handles one vector: out bytes of the
// result, made from in bytes of each operand. Offsets of operands are relative to
// the turn's own.
type kernel struct {
	Name    string // its Go twin, or what the twin's table calls it
	Kind    string // combine, pair, scale, widen, narrow or copy
	Case    string // what the switch of its kind compares with
	in, out int
	setup   []string
	body    func(at place) []string
	streams bool // stores go past the caches
}

// place is where the operands of a turn are, and its result, of which a pair makes two.
type place struct {
	dst, a, b     int
	pair, streams bool
}

// put stores a register in the result.
func (p place) put(instruction, register string, offset int) []string {
	if p.streams {
		instruction = map[string]string{"VMOVDQU": "VMOVNTDQ"}[instruction]
	}
	lines := []string{fmt.Sprintf("%s %s, %d(DI)", instruction, register, p.dst+offset)}
	if p.pair {
		lines = append(lines, fmt.Sprintf("%s %s, %d(R8)", instruction, register, p.dst+offset))
	}
	return lines
}

func (p place) x(offset int) string { return fmt.Sprintf("%d(SI)", p.a+offset) }
func (p place) y(offset int) string { return fmt.Sprintf("%d(DX)", p.b+offset) }

// paired is k with a second result.
func (k kernel) paired() kernel {
	k.Name, k.Kind = k.Name+"Pair", "pair"
	return k
}

// streamed is k with stores that go past the caches.
func (k kernel) streamed() kernel {
	k.Name, k.streams = k.Name+"Stream", true
	return k
}

// List is where the kernel is called: one switch each.
func (k kernel) List() string {
	if k.streams {
		return k.Kind + "Stream"
	}
	return k.Kind
}

// Symbol is the assembly function's name.
func (k kernel) Symbol() string { return k.Name + "AVX2" }

// Signature is the Go function's.
func (k kernel) Signature() string {
	switch k.Kind {
	case "combine":
		return "(dst, a, b *byte, n int)"
	case "pair":
		return "(dst, also, a, b *byte, n int)"
	case "scale":
		return "(dst, src *byte, factor uint64, n int)"
	}
	return "(dst, src *byte, n int)"
}

// Prologue loads the arguments; n, in turns, goes to CX.
func (k kernel) Prologue() []string {
	lines := []string{"MOVQ dst+0(FP), DI"}
	switch k.Kind {
	case "combine":
		lines = append(lines, "MOVQ a+8(FP), SI", "MOVQ b+16(FP), DX", "MOVQ n+24(FP), CX")
	case "pair":
		lines = append(lines, "MOVQ also+8(FP), R8", "MOVQ a+16(FP), SI", "MOVQ b+24(FP), DX", "MOVQ n+32(FP), CX")
	case "scale":
		lines = append(lines, "MOVQ src+8(FP), SI", "VMOVQ factor+16(FP), X8", "MOVQ n+24(FP), CX")
	default:
		lines = append(lines, "MOVQ src+8(FP), SI", "MOVQ n+16(FP), CX")
	}
	return append(lines, k.setup...)
}

// Arguments is the size of the frame's arguments.
func (k kernel) Arguments() int {
	switch k.Kind {
	case "pair":
		return 40
	case "combine", "scale":
		return 32
	}
	return 24
}

// Remainder reports whether single vectors may be left after the long loop.
func (k kernel) Remainder() bool { return k.Unrolled() > 1 && !k.streams }

// Unrolled is how many vectors the long loop takes a turn: four where that is
// little code, for the loop's own instructions would count there. A stream takes
// nothing but such turns.
func (k kernel) Unrolled() int {
	if len(k.body(place{})) > 14 {
		return 1
	}
	return 4
}

// Turn is the code of vectors turns and the advance of the pointers.
func (k kernel) Turn(vectors int) []string {
	var lines []string
	for i := range vectors {
		lines = append(lines, k.body(place{i * k.out, i * k.in, i * k.in, k.Kind == "pair", k.streams})...)
	}
	lines = append(lines, fmt.Sprintf("ADDQ $%d, SI", vectors*k.in), fmt.Sprintf("ADDQ $%d, DI", vectors*k.out))
	if k.Kind == "combine" || k.Kind == "pair" {
		lines = append(lines, fmt.Sprintf("ADDQ $%d, DX", vectors*k.in))
	}
	if k.Kind == "pair" {
		lines = append(lines, fmt.Sprintf("ADDQ $%d, R8", vectors*k.out))
	}
	return lines
}

// constants are vectors in read-only memory, each made of equal words, by name.
var constants = map[string]constant{}

type constant struct {
	Name string
	Word string // 8 bytes
}

// vector names a constant whose elements of so many bits hold value.
func vector(bits int, value uint64) string {
	name := fmt.Sprintf("x%d_%x", bits, value)
	word := value
	for b := bits; b < 64; b *= 2 {
		word |= word << b
	}
	constants[name] = constant{name, fmt.Sprintf("0x%016x", word)}
	return name + "<>(SB)"
}

func main() {
	log.SetFlags(0)
	all := kernels()
	code := render(assembly, map[string]any{"Kernels": all, "Constants": used(all)})
	if err := os.WriteFile("../kernels_amd64.s", code, 0o644); err != nil {
		log.Fatal(err)
	}
	source, err := format.Source(render(declarations, map[string]any{"Kernels": all}))
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("../kernels_amd64.go", source, 0o644); err != nil {
		log.Fatal(err)
	}
}

// used asks all kernels for their code once, which names their constants, and
// lists those.
func used(all []kernel) []constant {
	var code []string
	for _, k := range all {
		code = append(append(code, k.Prologue()...), k.Turn(1)...)
	}
	text := strings.Join(code, "\n")
	var list []constant
	for _, name := range sortedNames() {
		if strings.Contains(text, name+"<>") {
			list = append(list, constants[name])
		}
	}
	return list
}

func render(text string, data any) []byte {
	functions := template.FuncMap{
		"indent": func(lines []string) string { return "\t" + strings.Join(lines, "\n\t") },
		"of": func(list string, all []kernel) (some []kernel) {
			for _, k := range all {
				if k.List() == list {
					some = append(some, k)
				}
			}
			return some
		},
	}
	var out bytes.Buffer
	if err := template.Must(template.New("").Funcs(functions).Parse(text)).Execute(&out, data); err != nil {
		log.Fatal(err)
	}
	return out.Bytes()
}

// Command _gen writes the assembly kernels of internal/reduce and the Go
// declarations that go with them: for every processor kernels_*.s and kernels_*.go in
// the directory above. It is a module of its own, so that no build of the library
// sees it. From the top of the repository:
//
//	go -C internal/reduce/_gen run .
//
// What a kernel computes from one vector is in amd64.go and arm64.go; this file puts
// loops around it.
package main

import (
	"bytes"
	"embed"
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"
	"text/template"
)

//go:embed *.tmpl
var files embed.FS

// machine is a processor: its registers for arguments, and its instructions for moving
// and advancing them.
type machine struct {
	Arch, Constraint, Suffix   string
	dst, also, a, b, n, factor string
	load, loadFactor, advance  string
	past                       map[string]string // by store, the one that goes past the caches
	vector                     int               // bytes
	Kernels                    []kernel
}

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
	on      *machine
	streams bool // stores go past the caches
}

// kernel is a kernel that takes and makes a vector a turn.
func (m *machine) kernel(kind, name, of string, setup []string, body func(at place) []string) kernel {
	return kernel{Name: name, Kind: kind, Case: of, in: m.vector, out: m.vector, setup: setup, body: body, on: m}
}

// place is where the operands of a turn are, and its result, of which a pair makes two.
type place struct {
	on            *machine
	dst, a, b     int
	pair, streams bool
}

// put stores a register in the result.
func (p place) put(instruction, register string, offset int) []string {
	if p.streams {
		instruction = p.on.past[instruction]
	}
	lines := []string{fmt.Sprintf("%s %s, %d(%s)", instruction, register, p.dst+offset, p.on.dst)}
	if p.pair {
		lines = append(lines, fmt.Sprintf("%s %s, %d(%s)", instruction, register, p.dst+offset, p.on.also))
	}
	return lines
}

func (p place) x(offset int) string { return fmt.Sprintf("%d(%s)", p.a+offset, p.on.a) }
func (p place) y(offset int) string { return fmt.Sprintf("%d(%s)", p.b+offset, p.on.b) }

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
func (k kernel) Symbol() string { return k.Name + k.on.Suffix }

// argument is one of the function's, 8 bytes, and the register that it goes to.
type argument struct{ name, typ, register string }

func (k kernel) arguments() []argument {
	m := k.on
	dst, n := argument{"dst", "*byte", m.dst}, argument{"n", "int", m.n}
	a, b, src := argument{"a", "*byte", m.a}, argument{"b", "*byte", m.b}, argument{"src", "*byte", m.a}
	switch k.Kind {
	case "combine":
		return []argument{dst, a, b, n}
	case "pair":
		return []argument{dst, {"also", "*byte", m.also}, a, b, n}
	case "scale":
		return []argument{dst, src, {"factor", "uint64", m.factor}, n}
	}
	return []argument{dst, src, n}
}

// Signature is the Go function's.
func (k kernel) Signature() string {
	var list []string
	all := k.arguments()
	for i, a := range all {
		if i+1 < len(all) && all[i+1].typ == a.typ {
			list = append(list, a.name)
		} else {
			list = append(list, a.name+" "+a.typ)
		}
	}
	return "(" + strings.Join(list, ", ") + ")"
}

// Prologue loads the arguments.
func (k kernel) Prologue() []string {
	var lines []string
	for i, a := range k.arguments() {
		load := k.on.load
		if a.name == "factor" {
			load = k.on.loadFactor
		}
		lines = append(lines, fmt.Sprintf("%s %s+%d(FP), %s", load, a.name, 8*i, a.register))
	}
	return append(lines, k.setup...)
}

// Arguments is the size of the frame's arguments.
func (k kernel) Arguments() int { return 8 * len(k.arguments()) }

// Remainder reports whether single vectors may be left after the long loop.
func (k kernel) Remainder() bool { return k.Unrolled() > 1 && !k.streams }

// Unrolled is how many vectors the long loop takes a turn: four where that is
// little code, for the loop's own instructions would count there. A stream takes
// nothing but such turns.
func (k kernel) Unrolled() int {
	if len(k.body(place{on: k.on})) > 14 {
		return 1
	}
	return 4
}

// Turn is the code of vectors turns and the advance of the pointers.
func (k kernel) Turn(vectors int) []string {
	var lines []string
	for i := range vectors {
		lines = append(lines, k.body(place{k.on, i * k.out, i * k.in, i * k.in, k.Kind == "pair", k.streams})...)
	}
	for _, a := range k.arguments() {
		switch a.name {
		case "dst", "also":
			lines = append(lines, fmt.Sprintf("%s $%d, %s", k.on.advance, vectors*k.out, a.register))
		case "src", "a", "b":
			lines = append(lines, fmt.Sprintf("%s $%d, %s", k.on.advance, vectors*k.in, a.register))
		}
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
	amd64.Kernels, arm64.Kernels = amd64Kernels(), arm64Kernels()
	for _, m := range []*machine{amd64, arm64} {
		write("../kernels_"+m.Arch+".s", render(m.Arch+".s.tmpl", m))
		source, err := format.Source(render("declarations.go.tmpl", m))
		if err != nil {
			log.Fatal(err)
		}
		write("../kernels_"+m.Arch+".go", source)
	}
}

func write(path string, content []byte) {
	if err := os.WriteFile(path, content, 0o644); err != nil {
		log.Fatal(err)
	}
}

// Streams reports whether there are kernels that store past the caches.
func (m *machine) Streams() bool { return m.past != nil }

// Constants asks all kernels for their code once, which names their constants, and
// lists those.
func (m *machine) Constants() []constant {
	var code []string
	for _, k := range m.Kernels {
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

func render(name string, m *machine) []byte {
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
	text := template.Must(template.New(name).Funcs(functions).ParseFS(files, name))
	if err := text.Execute(&out, m); err != nil {
		log.Fatal(err)
	}
	return out.Bytes()
}

package plan

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Tuning is what a tuner file says: rules, of which for each call the first one
// that fits decides instead of the model. It must not be changed once a World has
// it. A nil Tuning has no rules.
type Tuning struct {
	Rules []Rule
	// Foreign are lines that are about what there is only on GPUs, or about an
	// algorithm that the collective does not have here, each as
	// FILE:LINE: what it is. They have no rules.
	Foreign []string
}

// Rule is a line of a tuner file.
type Rule struct {
	// Which calls it is about: those of Kind, an AllReduce's also for barriers,
	// with MinBytes to MaxBytes in the larger of a rank's two buffers.
	Kind               Kind
	MinBytes, MaxBytes int
	// In which worlds: of so many hosts and ranks, 0 = of any number.
	Hosts, Ranks int
	// PipeOps is how many calls NCCL has fused into one, 0 = any number. Here each
	// call has a plan of its own: rules for more than one don't fit any.
	PipeOps int
	// Registered says for which buffers it is.
	Registered Registered
	// Transport is how the ranks are connected: "inproc", "shm" or, where any two
	// are connected by sockets, "tcp"; "" = anyhow.
	Transport string

	// What it decides, where it is not zero.
	Choice Choice

	Line int // of the file
}

// Registered says which buffers a rule is for.
type Registered uint8

const (
	AnyBuffers   Registered = iota
	Unregistered            // of which it is not known that all ranks see them
	Shared                  // that all ranks see: of goroutines of one process
)

const (
	mostTuningBytes = 1 << 20
	mostRules       = 4096
	mostMistakes    = 8 // that are told at once
)

// tunerColumns are the columns of a tuner file. The first ones are NCCL's, of which
// the last two may be missing; transport is this project's own and may be, too.
//
// NCCL: ext-tuner/example.
var tunerColumns = [...]string{
	"collective_type", "min_bytes", "max_bytes", "algorithm", "protocol", "channels",
	"nNodes", "nRanks", "numPipeOps", "regBuff", "transport",
}

const fewestColumns = 8

// TunerHeader names the columns as the first line of a file may.
func TunerHeader() string { return strings.Join(tunerColumns[:], ",") }

// tunerKinds are the collectives that a line can be about.
var tunerKinds = []Kind{Broadcast, Reduce, AllGather, ReduceScatter, AllReduce}

// foreignAlgorithms are NCCL's that need what only GPUs and their networks have, or
// that this project does without.
var foreignAlgorithms = []string{"collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"}

// ParseTuning reads a tuner file: lines of NCCL's tuner plugin, comma-separated,
// with this project's algorithms, protocols and column besides. -1 stands for any,
// or for what the model decides. Lines that begin with # and empty ones are
// comments. The errors name the file, by the name given, with line and column.
func ParseTuning(name string, r io.Reader) (*Tuning, error) {
	t := &Tuning{}
	var mistakes []error
	bounded := &io.LimitedReader{R: r, N: mostTuningBytes + 1}
	lines := bufio.NewScanner(bounded)
	lines.Buffer(nil, mostTuningBytes)
	for number := 1; lines.Scan(); number++ {
		text := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff"))
		if text == "" || text[0] == '#' {
			continue
		}
		fields := tunerFields(text)
		if strings.EqualFold(fields[0], tunerColumns[0]) {
			continue // the names of the columns
		}
		l := tunerLine{fields: fields}
		rule := l.rule()
		rule.Line = number
		place := fmt.Sprintf("%s:%d", name, number)
		switch {
		case l.err != nil:
			mistakes = append(mistakes, fmt.Errorf("%s: %w", place, l.err))
		case l.foreign != "":
			t.Foreign = append(t.Foreign, place+": "+l.foreign)
		case len(t.Rules) == mostRules:
			mistakes = append(mistakes, fmt.Errorf("%s: more than %d rules", place, mostRules))
			return nil, errors.Join(mistakes...)
		default:
			t.Rules = append(t.Rules, rule)
		}
		if len(mistakes) == mostMistakes {
			return nil, errors.Join(mistakes...)
		}
	}
	switch err := lines.Err(); {
	case bounded.N == 0, errors.Is(err, bufio.ErrTooLong):
		mistakes = append(mistakes, fmt.Errorf("%s: more than %d bytes", name, mostTuningBytes))
	case err != nil:
		mistakes = append(mistakes, fmt.Errorf("%s: %w", name, err))
	}
	if len(mistakes) > 0 {
		return nil, errors.Join(mistakes...)
	}
	return t, nil
}

// tunerFields cuts a line. A spreadsheet may have quoted fields, none of which has
// a comma inside.
func tunerFields(line string) []string {
	fields := strings.Split(line, ",")
	for i, f := range fields {
		f = strings.TrimSpace(f)
		if len(f) >= 2 && f[0] == '"' && f[len(f)-1] == '"' {
			f = strings.TrimSpace(f[1 : len(f)-1])
		}
		fields[i] = f
	}
	return fields
}

// tunerLine is a line that is being read.
type tunerLine struct {
	fields  []string
	foreign string // why it has no rule
	err     error  // the first mistake
}

func (l *tunerLine) wrong(column int, accepted string) {
	if l.err == nil {
		l.err = fmt.Errorf("column %d (%s): %q, accepted: %s", column+1, tunerColumns[column], l.fields[column], accepted)
	}
}

func (l *tunerLine) rule() Rule {
	if n := len(l.fields); n < fewestColumns || n > len(tunerColumns) {
		l.err = fmt.Errorf("column %d is the last, accepted: %d to %d columns (%s)", n, fewestColumns, len(tunerColumns), TunerHeader())
		return Rule{}
	}
	r := Rule{
		Kind:     l.kind(0),
		MinBytes: l.bytes(1, 0), MaxBytes: l.bytes(2, math.MaxInt),
		Hosts: l.number(6), Ranks: l.number(7), PipeOps: l.number(8),
		Registered: l.registered(9), Transport: l.transport(10),
	}
	r.Choice = Choice{Algorithm: l.algorithm(3), Protocol: l.protocol(4), Channels: l.number(5)}
	if l.err == nil && r.MinBytes > r.MaxBytes {
		l.wrong(2, fmt.Sprintf("min_bytes (%d) and more", r.MinBytes))
	}
	a, p := r.Choice.Algorithm, r.Choice.Protocol
	switch {
	case l.err != nil || l.foreign != "" || a == AutoAlgorithm:
	case !slices.Contains(r.Kind.algorithms(a), a):
		l.foreign = fmt.Sprintf("%s has no algorithm %v", kindName(r.Kind), a)
	case p == Direct && a != OneShot && a != TwoShot, a == TwoShot && p != Direct && p != AutoProtocol:
		l.foreign = fmt.Sprintf("%v has no protocol %v", a, p)
	}
	return r
}

// field is a column, "-1" where it is missing.
func (l *tunerLine) field(column int) string {
	if column >= len(l.fields) {
		return "-1"
	}
	return l.fields[column]
}

func (l *tunerLine) kind(column int) Kind {
	var names []string
	for _, k := range tunerKinds {
		if strings.EqualFold(l.field(column), kindName(k)) {
			return k
		}
		names = append(names, kindName(k))
	}
	l.wrong(column, strings.Join(names, ", "))
	return 0
}

// bytes reads a size. Files have 4294967295 or more for no bound.
func (l *tunerLine) bytes(column, unbounded int) int {
	text := l.field(column)
	if text == "-1" {
		return unbounded
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		l.wrong(column, "a number of bytes, or -1")
		return 0
	}
	return int(min(n, math.MaxInt))
}

// number reads a number from 1 on, or -1 for none, which gives 0.
func (l *tunerLine) number(column int) int {
	text := l.field(column)
	if text == "-1" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		l.wrong(column, "-1, or a number from 1 on")
		return 0
	}
	return int(n)
}

func (l *tunerLine) registered(column int) Registered {
	switch l.field(column) {
	case "-1":
		return AnyBuffers
	case "0":
		return Unregistered
	case "1":
		return Shared
	}
	l.wrong(column, "-1, 0 and 1")
	return AnyBuffers
}

func (l *tunerLine) transport(column int) string {
	switch text := strings.ToLower(l.field(column)); text {
	case "inproc", "shm", "tcp":
		return text
	case "-1":
	default:
		l.wrong(column, "inproc, shm, tcp, -1")
	}
	return ""
}

func (l *tunerLine) algorithm(column int) Algorithm {
	text := l.field(column)
	if text == "-1" {
		return AutoAlgorithm
	}
	var names []string
	for _, a := range Algorithms() {
		if strings.EqualFold(text, a.String()) {
			return a
		}
		names = append(names, a.String())
	}
	for _, name := range foreignAlgorithms {
		if strings.EqualFold(text, name) {
			l.foreign = fmt.Sprintf("there is no algorithm %s here", name)
			return AutoAlgorithm
		}
	}
	l.wrong(column, strings.Join(append(append(names, "-1"), foreignAlgorithms...), ", "))
	return AutoAlgorithm
}

func (l *tunerLine) protocol(column int) Protocol {
	text := l.field(column)
	if text == "-1" {
		return AutoProtocol
	}
	p, err := ParseProtocol(text)
	if err != nil {
		l.wrong(column, strings.Join(protocolNames[:], ", ")+", -1")
	}
	return p
}

// transport is how the ranks are connected, as a tuner file names it.
func (w World) transport() string {
	switch {
	case w.widest() == wire:
		return "tcp"
	case w.Sight == SeesEverything:
		return "inproc"
	}
	return "shm"
}

// String is the rule as a line of a tuner file that gives the same rule.
func (r Rule) String() string {
	any := func(n int) string {
		if n == 0 {
			return "-1"
		}
		return strconv.Itoa(n)
	}
	name := func(text string) string {
		if text == "" || text == "auto" {
			return "-1"
		}
		return text
	}
	most := strconv.Itoa(r.MaxBytes)
	if r.MaxBytes == math.MaxInt {
		most = "-1"
	}
	fields := []string{
		kindName(r.Kind), strconv.Itoa(r.MinBytes), most,
		name(r.Choice.Algorithm.String()), name(r.Choice.Protocol.String()), any(r.Choice.Channels),
		any(r.Hosts), any(r.Ranks), any(r.PipeOps), strconv.Itoa(int(r.Registered) - 1),
	}
	if r.Transport != "" {
		fields = append(fields, r.Transport)
	}
	return strings.Join(fields, ",")
}

// Marks are 4 bytes for each rule, by which ranks compare their rules without
// telling them all.
func (t *Tuning) Marks() []byte {
	if t == nil {
		return nil
	}
	var marks []byte
	for _, r := range t.Rules {
		sum := sha256.Sum256([]byte(r.String()))
		marks = append(marks, sum[:4]...)
	}
	return marks
}

// fits reports whether a rule is about a call.
func (r *Rule) fits(s Spec, w World) bool {
	kind, bytes := s.Kind, s.bytes()
	if kind == Barrier {
		kind = AllReduce
	}
	if kind.perRank() {
		bytes *= w.Size
	}
	return r.Kind == kind && r.MinBytes <= bytes && bytes <= r.MaxBytes &&
		(r.Hosts == 0 || r.Hosts == w.Hosts.Count()) &&
		(r.Ranks == 0 || r.Ranks == w.Size) &&
		r.PipeOps <= 1 &&
		(r.Registered == AnyBuffers || (r.Registered == Shared) == (w.transport() == "inproc")) &&
		(r.Transport == "" || r.Transport == w.transport())
}

// tuned is what the first rule that fits decides, if that is possible: where it
// contradicts what is forced or allowed, or can't run here, the model decides.
func (s Spec) tuned(w World) (Choice, bool) {
	if w.Tuning == nil || w.Size == 1 {
		return Choice{}, false
	}
	i := slices.IndexFunc(w.Tuning.Rules, func(r Rule) bool { return r.fits(s, w) })
	if i < 0 {
		return Choice{}, false
	}
	rule := w.Tuning.Rules[i].Choice
	a, p := w.Force.Algorithm, w.Force.Protocol
	if rule.Algorithm != AutoAlgorithm {
		if a != AutoAlgorithm && a != rule.Algorithm || a == AutoAlgorithm && !w.Allowed.algorithms[s.Kind].has(int(rule.Algorithm)) {
			return Choice{}, false
		}
		w.Force.Algorithm = rule.Algorithm
	}
	if rule.Protocol != AutoProtocol {
		if p != AutoProtocol && p != rule.Protocol || p == AutoProtocol && !w.Allowed.protocols[s.Kind].has(int(rule.Protocol)) {
			return Choice{}, false
		}
		w.Force.Protocol = rule.Protocol
	}
	if w.Force.Channels == 0 {
		w.Force.Channels = rule.Channels
	}
	w.Tuning = nil
	c, err := Choose(s, w)
	return c, err == nil && (rule.Algorithm == AutoAlgorithm || c.Algorithm == rule.Algorithm) &&
		(rule.Protocol == AutoProtocol || c.Protocol == rule.Protocol)
}

package plan

import (
	"fmt"
	"slices"
	"strings"
)

// Allowed narrows what Choose chooses from, by operation. The zero value allows
// everything. Where it leaves an operation nothing, it is ignored for that
// operation, as a forced algorithm is that the operation does not have.
type Allowed struct {
	algorithms, protocols [kindsCount]choices
}

// choices is a set of algorithms or of protocols by their numbers; 0 is all.
type choices uint8

func (c choices) has(number int) bool { return c == 0 || c>>number&1 != 0 }

// ParseAlgorithms narrows the algorithms by a list in NCCL's syntax, as NCCL_ALGO
// has it, in any case:
//
//	list   = entry { ";" entry }
//	entry  = [ collective ":" ] [ "^" ] name { "," name }
//
// A list that begins with ^ allows all but its names. Only the first entry may do
// without a collective; it is for all that are not named. "ring,tree", for
// example, or "ring;allreduce:^ring". A Barrier is an allreduce.
//
// NCCL: parseList in src/graph/tuning.cc.
func (a *Allowed) ParseAlgorithms(list string) error {
	return parseList(list, &a.algorithms, listed{
		what: "algorithm", names: listedAlgorithms(),
		has: func(k Kind) choices {
			var all choices
			for _, algorithm := range k.algorithms(AutoAlgorithm) {
				all |= 1 << algorithm
			}
			return all
		},
		kinds: []Kind{AllReduce, Reduce, Broadcast, AllGather, ReduceScatter},
	})
}

// ParseProtocols narrows the protocols in the same way. Messages go by the name
// of sendrecv, whatever operation they belong to.
func (a *Allowed) ParseProtocols(list string) error {
	return parseList(list, &a.protocols, listed{
		what: "protocol", names: listedNames(Simple, LL, LL128, Direct),
		has: func(k Kind) choices {
			if k.pointToPoint() {
				return 1<<Simple | 1<<LL
			}
			return 1<<Simple | 1<<LL | 1<<LL128 | 1<<Direct
		},
		kinds: []Kind{AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, Send},
	})
}

// listed is what a list can name.
type listed struct {
	what  string
	names []string // by number; "" where there is nothing to be listed
	has   func(Kind) choices
	kinds []Kind // that can be named
}

func (l listed) accepted() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(l.names), func(name string) bool { return name == "" }), ", ")
}

// listedNames are the names of some algorithms or protocols, by number.
func listedNames[T interface {
	~uint8
	fmt.Stringer
}](values ...T) []string {
	names := make([]string, slices.Max(values)+1)
	for _, v := range values {
		names[v] = v.String()
	}
	return names
}

func listedAlgorithms() []string { return listedNames(Algorithms()[1:]...) }

// kindName is how a list names an operation.
func kindName(k Kind) string {
	if k == Send {
		return "sendrecv"
	}
	return strings.ToLower(k.String())
}

func parseList(list string, allowed *[kindsCount]choices, l listed) error {
	result := [kindsCount]choices{}
	named := make(map[Kind]bool, len(l.kinds))
	for i, entry := range strings.Split(list, ";") {
		collective, names, prefixed := strings.Cut(entry, ":")
		if !prefixed {
			collective, names = "", entry
		}
		set, err := l.choices(names)
		switch {
		case err != nil:
			return err
		case prefixed:
			k, err := l.kind(strings.TrimSpace(collective))
			if err != nil {
				return err
			}
			if named[k] {
				return fmt.Errorf("%s is named twice", kindName(k))
			}
			if named[k] = true; set&l.has(k) == 0 {
				return fmt.Errorf("%q leaves no %s for %s", entry, l.what, kindName(k))
			}
			result[k] = set & l.has(k)
		case i > 0:
			return fmt.Errorf("%q names no collective, which only the first entry may do without", entry)
		default:
			for _, k := range l.kinds {
				result[k] = set & l.has(k)
			}
		}
	}
	result[Barrier] = result[AllReduce]
	for k := range result {
		if Kind(k).pointToPoint() {
			result[k] = result[Send]
		}
	}
	*allowed = result
	return nil
}

// kind reads the name of a collective.
func (l listed) kind(name string) (Kind, error) {
	var accepted []string
	for _, k := range l.kinds {
		if strings.EqualFold(name, kindName(k)) || k != Send && strings.EqualFold(name, kindNames[k].tests) {
			return k, nil
		}
		accepted = append(accepted, kindName(k))
	}
	return 0, fmt.Errorf("unknown collective %q, accepted are %s", name, strings.Join(accepted, ", "))
}

// choices reads the names of an entry.
func (l listed) choices(names string) (choices, error) {
	names, except := strings.CutPrefix(strings.TrimSpace(names), "^")
	var set, all choices
	for number, name := range l.names {
		if name != "" {
			all |= 1 << number
		}
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		number := slices.IndexFunc(l.names, func(n string) bool { return strings.EqualFold(n, name) })
		if number < 0 || name == "" {
			return 0, fmt.Errorf("unknown %s %q, accepted are %s", l.what, name, l.accepted())
		}
		set |= 1 << number
	}
	if !except {
		return set, nil
	}
	if all&^set == 0 {
		return 0, fmt.Errorf("%q leaves no %s", "^"+names, l.what)
	}
	return all &^ set, nil
}

// String is what is allowed, as lists that can be read again: first the
// algorithms, behind a space the protocols; "auto" where nothing is excluded.
func (a Allowed) String() string {
	return listText(a.algorithms, listedAlgorithms()) + " " + listText(a.protocols, listedNames(Simple, LL, LL128, Direct))
}

func listText(allowed [kindsCount]choices, names []string) string {
	var entries []string
	for k := range Kind(kindsCount) {
		if allowed[k] == 0 || k == Barrier || k.pointToPoint() && k != Send {
			continue
		}
		var list []string
		for number, name := range names {
			if name != "" && allowed[k].has(number) {
				list = append(list, name)
			}
		}
		entries = append(entries, kindName(k)+":"+strings.Join(list, ","))
	}
	if entries == nil {
		return "auto"
	}
	return strings.Join(entries, ";")
}

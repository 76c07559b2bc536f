package launch

import (
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
)

// maxNodes bounds what a node list can make: a few bytes can name billions.
const maxNodes = 1 << 20

// FirstNode is the first host of a compressed node list.
func FirstNode(list string) (string, error) {
	for name, err := range Nodes(list) {
		return name, err
	}
	return "", errors.New("the list names no node")
}

// Nodes yields the hosts of a list in Slurm's compressed form, in order:
//
//	node[01-03,7],login   node01 node02 node03 node7 login
//	r[1-2]n[0-1]x         r1n0x r1n1x r2n0x r2n1x
//
// Numbers keep the width of the first number of their range. An error ends the
// sequence; what came before it is valid.
func Nodes(list string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		entries, err := splitOutside(list)
		if err != nil {
			yield("", err)
			return
		}
		made := 0
		for _, entry := range entries {
			pieces, err := parseEntry(entry)
			if err != nil {
				yield("", err)
				return
			}
			for name := range expand("", pieces) {
				if made++; made > maxNodes {
					yield("", fmt.Errorf("more than %d nodes", maxNodes))
					return
				}
				if !yield(name, nil) {
					return
				}
			}
		}
	}
}

// splitOutside splits at the commas that are not inside brackets.
func splitOutside(list string) (entries []string, err error) {
	begin, inside := 0, false
	for i := range len(list) {
		switch b := list[i]; {
		case b == '[' && inside, b == ']' && !inside:
			return nil, fmt.Errorf("bracket out of place at byte %d", i)
		case b == '[', b == ']':
			inside = !inside
		case b == ',' && !inside:
			entries = append(entries, list[begin:i])
			begin = i + 1
		}
	}
	if inside {
		return nil, errors.New("a bracket is not closed")
	}
	return append(entries, list[begin:]), nil
}

// piece is a text and the numbers that follow it; a last piece may have none.
type piece struct {
	text   string
	ranges []numbers
}

type numbers struct {
	low, high uint64
	width     int
}

func parseEntry(entry string) (pieces []piece, err error) {
	if entry == "" {
		return nil, errors.New("empty name")
	}
	for rest := entry; rest != ""; {
		text, after, bracket := strings.Cut(rest, "[")
		if i := strings.IndexFunc(text, notInHostname); i >= 0 {
			return nil, fmt.Errorf("%s: not a host name", shown(entry))
		}
		p := piece{text: text}
		rest = ""
		if bracket {
			var inner string
			inner, rest, _ = strings.Cut(after, "]")
			if p.ranges, err = parseRanges(inner); err != nil {
				return nil, err
			}
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

func notInHostname(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
}

func parseRanges(list string) (ranges []numbers, err error) {
	for _, text := range strings.Split(list, ",") {
		low, high, isRange := strings.Cut(text, "-")
		if !isRange {
			high = low
		}
		n := numbers{width: len(low)}
		// Ten digits name every node there can be, and keep sums from overflowing.
		if len(low) > 10 || len(high) > 10 {
			return nil, fmt.Errorf("%s: number too long", shown(text))
		}
		if n.low, err = strconv.ParseUint(low, 10, 64); err != nil {
			return nil, fmt.Errorf("%s is not a range of numbers", shown(text))
		}
		if n.high, err = strconv.ParseUint(high, 10, 64); err != nil || n.high < n.low {
			return nil, fmt.Errorf("%s is not a range of numbers", shown(text))
		}
		ranges = append(ranges, n)
	}
	return ranges, nil
}

// expand yields prefix followed by every choice of numbers; the last brackets
// count fastest.
func expand(prefix string, pieces []piece) iter.Seq[string] {
	return func(yield func(string) bool) { expandTo(prefix, pieces, yield) }
}

func expandTo(prefix string, pieces []piece, yield func(string) bool) bool {
	if len(pieces) == 0 {
		return yield(prefix)
	}
	prefix += pieces[0].text
	if pieces[0].ranges == nil {
		return expandTo(prefix, pieces[1:], yield)
	}
	for _, r := range pieces[0].ranges {
		for n := r.low; n <= r.high; n++ {
			if !expandTo(fmt.Sprintf("%s%0*d", prefix, r.width, n), pieces[1:], yield) {
				return false
			}
		}
	}
	return true
}

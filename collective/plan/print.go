package plan

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// Long plans are cut to what a reader looks at.
const (
	shownLoops     = 2  // from the start; the last one is shown too
	shownTransfers = 16 // from the start; the last one is shown too
	shownHosts     = 8  // from the start; the last one is shown too
	shownRuns      = 16 // runs of ranks of a host
)

// String is the plan as text: a line for the call, a line for each pipeline with
// its neighbours and the elements it covers, and a line for each step with the
// piece it handles. Of many loops or messages it shows the first and the last.
// Where there are several hosts it lists their ranks, and names the host of each
// peer on another one.
func (p *Plan) String() string {
	var b bytes.Buffer
	p.print(&b)
	return b.String()
}

// WriteTo writes String to w.
func (p *Plan) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	p.print(&b)
	return b.WriteTo(w)
}

func (p *Plan) print(b *bytes.Buffer) {
	call := p.Spec.String()
	if p.Choice.Algorithm == PointToPoint && p.Spec == (Spec{}) {
		call = "messages"
	}
	fmt.Fprintf(b, "%s: %v, %v, %s; rank %d of %d\n", call, p.Choice.Algorithm, p.Choice.Protocol,
		plural(p.Choice.Channels, "channel"), p.Rank, p.Size)
	p.printHosts(b)
	if len(p.Channels) == 0 {
		b.WriteString("nothing moves between ranks\n")
	}
	for i := range p.Channels {
		ch := &p.Channels[i]
		if ch.Direct != nil {
			p.printDirect(b, ch)
			if len(ch.Threads) > 0 {
				fmt.Fprintf(b, "where a buffer is not in sight, a ring with %v:\n", p.instead)
			}
		}
		for j := range ch.Threads {
			p.printThread(b, ch, &ch.Threads[j])
		}
		if len(ch.Threads) == 0 && ch.Direct == nil {
			p.printMessages(b, ch)
		}
	}
}

// printDirect tells what a rank does without FIFOs.
func (p *Plan) printDirect(b *bytes.Buffer, ch *Channel) {
	s := p.Spec
	if ch.Direct.Shares == nil {
		fmt.Fprintf(b, "channel %d: every rank posts, each takes what it needs\n", ch.ID)
		posts := s.Kind != Broadcast || p.Rank == s.Root
		takes := s.Kind != Reduce || p.Rank == s.Root
		if posts {
			fmt.Fprintf(b, "  post                 [0,%d) of the input\n", p.shown())
		}
		if takes {
			from := "all posts, in the order of the ranks"
			if s.Kind == Broadcast {
				from = "the root's post"
			}
			fmt.Fprintf(b, "  %-20s of %s\n", p.taking(), from)
		}
		return
	}
	mine := ch.Direct.Shares[p.Rank]
	fmt.Fprintf(b, "channel %d: every rank lends its buffers; %s\n", ch.ID, s.usingLoans(ch.Direct.Pulls))
	if ch.Direct.Whole {
		b.WriteString("  where no buffer is in place, each combines everything for itself\n")
	}
	fmt.Fprintf(b, "  %-20s [%d,%d)\n", p.taking(), mine.Begin, mine.End)
}

// usingLoans tells what the ranks do with what all lend.
func (s Spec) usingLoans(pulls bool) string {
	switch {
	case s.Kind == AllGather:
		return "each copies all inputs"
	case s.Kind == Broadcast:
		return "each copies the root's input"
	case s.Kind == ReduceScatter:
		return "each combines its block of all inputs, in the order of the ranks"
	case s.Kind == Reduce && pulls:
		return "the root combines all inputs, in the order of the ranks"
	case pulls:
		return "each combines a share, in the order of the ranks, and the others fetch it"
	case s.Kind == Reduce:
		return "each combines a share, in the order of the ranks, and stores it in the root's output"
	}
	return "each combines a share, in the order of the ranks, and stores it in all outputs"
}

// shown is how many elements a rank posts.
func (p *Plan) shown() int {
	if p.Spec.Kind == ReduceScatter {
		return p.Spec.Count * p.Size
	}
	return p.Spec.Count
}

// taking is what a rank does with what it sees.
func (p *Plan) taking() string {
	if p.Spec.Kind.reduces() {
		return "reduce"
	}
	return "copy"
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *Plan) printThread(b *bytes.Buffer, ch *Channel, t *Thread) {
	loops := t.Loops()
	chunk := fmt.Sprintf("chunk %d", t.Chunk)
	if loops == 1 {
		chunk = fmt.Sprintf("chunk %d", t.Last)
	} else if t.Last != t.Chunk {
		chunk += fmt.Sprintf(", last %d", t.Last)
	}
	fmt.Fprintf(b, "channel %d%s: %s; elements [%d,%d) in %s, %s\n",
		ch.ID, t.title(ch.Concurrent), p.neighbours(t), t.Begin, t.End, plural(loops, "loop"), chunk)
	for loop := 0; loop < loops; loop++ {
		if left := loops - 1 - loop; loop == shownLoops && left > 0 {
			fmt.Fprintf(b, "  … %s left out\n", plural(left, "loop"))
			loop = loops - 1
		}
		if loops > 1 {
			fmt.Fprintf(b, "  loop %d\n", loop)
		}
		for _, st := range t.Steps {
			t.printStep(b, st, loop)
		}
	}
}

// printHosts lists the ranks of each host, if there are several.
func (p *Plan) printHosts(b *bytes.Buffer) {
	if p.Hosts == nil {
		return
	}
	for host := 0; host < p.Hosts.Count(); host++ {
		if left := p.Hosts.Count() - 1 - host; host == shownHosts && left > 0 {
			fmt.Fprintf(b, "… %s left out\n", plural(left, "host"))
			host = p.Hosts.Count() - 1
		}
		fmt.Fprintf(b, "host %d: ranks%s\n", host, runs(p.Hosts.Ranks(host)))
	}
}

// runs writes ascending numbers with a space before each, neighbours as first-last.
func runs(numbers []int) string {
	var b strings.Builder
	for shown := 0; len(numbers) > 0; shown++ {
		if shown == shownRuns {
			fmt.Fprintf(&b, " … %d more", len(numbers))
			break
		}
		last := 0
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		fmt.Fprintf(&b, " %d", numbers[0])
		if last > 0 {
			fmt.Fprintf(&b, "-%d", numbers[last])
		}
		numbers = numbers[last+1:]
	}
	return b.String()
}

// away is the host of a rank that is on another one than the plan's, else None.
func (p *Plan) away(rank int) int {
	if host := p.Hosts.Of(rank); host != p.Hosts.Of(p.Rank) {
		return host
	}
	return None
}

// title is what tells the threads of a channel apart.
func (t *Thread) title(concurrent bool) string {
	switch {
	case t.Name == "ring" || t.Name == "oneshot":
		return ""
	case concurrent:
		return " " + t.Name + " (concurrent)"
	}
	return " " + t.Name
}

// neighbours names the ranks at the other ends of the thread's FIFOs.
func (p *Plan) neighbours(t *Thread) string {
	from, to := "from", "to"
	if t.Name == "ring" {
		from, to = "prev", "next"
	}
	var ends []string
	for _, end := range []struct {
		name  string
		ranks []int
	}{{from, t.From}, {to, t.To}} {
		if len(end.ranks) == 0 {
			continue
		}
		text := end.name
		for _, rank := range end.ranks {
			text += fmt.Sprintf(" %d", rank)
			if host := p.away(rank); host != None {
				text += fmt.Sprintf(" (host %d)", host)
			}
		}
		ends = append(ends, text)
	}
	return strings.Join(ends, ", ")
}

func (t *Thread) printStep(b *bytes.Buffer, st Step, loop int) {
	block := st.Out
	if block == None {
		block = st.In
	}
	offset, count := t.Range(loop, block)
	what, number := "chunk", block
	if t.Stride > 0 {
		what = "block"
	} else if t.Chunks == 1 {
		number = loop
	}
	fmt.Fprintf(b, "  %-20s %s %d  [%d,%d)", st.Action, what, number, offset, offset+count)
	if st.In != None && st.Out != None && st.In != st.Out {
		from, _ := t.Range(loop, st.In)
		fmt.Fprintf(b, " from [%d,%d)", from, from+count)
	}
	if st.In != None && t.Stride > 0 {
		b.WriteString(" of the input")
	}
	if st.Action == DoRecvReduceCopy || st.Action == DoRecvReduceCopySend {
		fmt.Fprintf(b, "   result of %s %d is complete here", what, number)
	}
	b.WriteByte('\n')
}

func (p *Plan) printMessages(b *bytes.Buffer, ch *Channel) {
	fmt.Fprintf(b, "channel %d: %s", ch.ID, plural(len(ch.Transfers), "transfer"))
	if len(ch.Copies) > 0 {
		fmt.Fprintf(b, ", %d to itself", len(ch.Copies))
	}
	b.WriteByte('\n')
	for _, c := range ch.Copies {
		fmt.Fprintf(b, "  copy                 [%d,%d) to [%d,%d)\n",
			c.FromOffset, c.FromOffset+c.Bytes, c.ToOffset, c.ToOffset+c.Bytes)
	}
	for i := 0; i < len(ch.Transfers); i++ {
		if left := len(ch.Transfers) - 1 - i; i == shownTransfers && left > 0 {
			fmt.Fprintf(b, "  … %s left out\n", plural(left, "transfer"))
			i = len(ch.Transfers) - 1
		}
		p.printTransfer(b, &ch.Transfers[i])
	}
}

func (p *Plan) printTransfer(b *bytes.Buffer, tr *Transfer) {
	direction := "recv from"
	if tr.Send {
		direction = "send to"
	}
	fmt.Fprintf(b, "  %-20s round %d  bytes [%d,%d)", fmt.Sprintf("%s %d", direction, tr.Peer), tr.Round,
		tr.Offset, tr.Offset+tr.Bytes)
	if tr.Bytes < tr.Total {
		fmt.Fprintf(b, " of %d", tr.Total)
	}
	fmt.Fprintf(b, ", %v, chunk %d", tr.Protocol, tr.Chunk)
	if tr.Epoch > 0 {
		fmt.Fprintf(b, ", epoch %d", tr.Epoch)
	}
	if host := p.away(tr.Peer); host != None {
		fmt.Fprintf(b, ", host %d", host)
	}
	if tr.First {
		b.WriteString(", opens the message")
	}
	b.WriteByte('\n')
}

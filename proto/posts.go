package proto

import "github.com/gollective/gollective/internal/spin"

// posts is the condition that all ranks have posted, or one of them something else than
// this operation. It is one wait, however many ranks are late: each would have the rank
// give its processor away and come back.
type posts struct {
	direct *Direct
	next   int  // whose post is looked for; those of the ranks before it are there
	other  bool // rank next has posted something else
}

var _ spin.Named = (*posts)(nil)

// begin makes p that of the operation in progress.
func (p *posts) begin() { p.next, p.other = 0, false }

func (p *posts) Ready() bool {
	d := p.direct
	for ; p.next < len(d.desks); p.next++ {
		desk := d.desks[p.next]
		if p.next == d.rank {
			continue
		}
		if !desk.Posted(d.post) {
			return false
		}
		d.seen[p.next] = d.post
		if desk.Header(d.post) != d.op.Header {
			p.other = true
			return true
		}
	}
	return true
}

func (p *posts) Peer() int          { return p.next }
func (p *posts) Arm(k *spin.Parker) { p.direct.own.Waiter().Arm(k) }
func (p *posts) Disarm()            { p.direct.own.Waiter().Disarm() }
func (p *posts) What() string       { return "post" }

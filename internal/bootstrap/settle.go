package bootstrap

// What is everywhere, found out with a token; all of this needs Control.mu.
//
// The coordinator, the lowest living rank, sends a token clockwise round the
// ring of the living whenever there is something in its log. Each process holds
// it until it has everything that the token asks about, then passes it on, so a
// token that has come back has found what it asked everywhere. The next token
// tells the others, who then forget those entries too, and asks about the next.
// With nothing left to tell or ask, no token is under way.
//
// A token is lost only with a process that holds it, or with a link. Each
// process keeps the latest token it has passed on and sends it again when its
// next neighbour changes or the link to it is a new one; who has seen it drops
// it. When the coordinator dies the lowest rank then living starts its own.
//
// The ring may skip only those that are lost or have left. A stopped process
// holds the token up, and with it the forgetting, but not the messages.

// passing is a token to be passed on.
type passing struct {
	t      *token
	frame  []byte
	from   int   // marks before this one are covered
	ready  bool  // all marks are
	sentOn *link // where it went, if anywhere yet
}

// takeToken handles a token that has arrived.
func (c *Control) takeToken(t *token) {
	if t.issuer == c.rank {
		if c.inRound && t.round == c.round {
			delete(c.passing, c.rank)
			c.inRound = false
			c.found = t.asked
			c.forget(t.asked)
			c.coordinate()
		}
		return
	}
	if t.round <= c.seen[t.issuer] {
		return
	}
	c.seen[t.issuer] = t.round
	c.forget(t.settled)
	c.passing[t.issuer] = &passing{t: t, frame: tokenFrame(t)}
	c.pump()
}

func (c *Control) forget(marks []mark) {
	if len(marks) > 0 {
		c.backlog -= c.journal.settle(marks, c.rank)
		c.notify()
	}
}

// pump passes tokens on as far as that is possible now.
func (c *Control) pump() {
	if len(c.passing) == 0 {
		return
	}
	next, _ := c.successor()
	for _, p := range c.passing {
		if !p.ready {
			p.ready = c.journal.covers(p.t.asked, &p.from)
		}
		if p.ready && next != nil && p.sentOn != next {
			next.send(p.frame)
			p.sentOn = next
		}
	}
}

// successor is the link to the next process on the ring of the living, or nil
// while there is none; alone says that there is no such process. A process that
// has left stays on the ring while it is linked.
func (c *Control) successor() (next *link, alone bool) {
	for i := 1; i < c.size; i++ {
		r := (c.rank + i) % c.size
		switch c.state[r] {
		case alive:
			return c.linked(r), false
		case hasLeft:
			if l := c.linked(r); l != nil {
				return l, false
			}
		}
	}
	return nil, true
}

// coordinator reports whether it falls to this process to send tokens: to the
// lowest living rank, or, when all are leaving, to the lowest of those in sight.
func (c *Control) coordinator() bool {
	for r, s := range c.state {
		if s == alive {
			return r == c.rank
		}
	}
	for _, l := range c.links {
		if l.peer < c.rank && c.state[l.peer] == hasLeft {
			return false
		}
	}
	return true
}

// coordinate starts a round if it is this process's to start and there is
// something to find out or to tell.
func (c *Control) coordinate() {
	if !c.joined || c.down || c.inRound && len(c.links) > 0 || !c.coordinator() {
		return
	}
	if _, alone := c.successor(); alone {
		c.inRound, c.found = false, nil
		delete(c.passing, c.rank)
		c.forget(c.journal.unsettled())
		return
	}
	if c.inRound {
		return
	}
	asked := c.journal.unsettled()
	if len(asked) == 0 && len(c.found) == 0 {
		return
	}
	c.round++
	c.inRound = true
	t := &token{issuer: c.rank, round: c.round, settled: c.found, asked: asked}
	c.found = nil
	c.passing[c.rank] = &passing{t: t, frame: tokenFrame(t), ready: true}
	c.pump()
}

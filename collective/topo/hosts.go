package topo

import "slices"

// Hosts says which ranks live on which host. Ranks of one host reach each other
// through memory, ranks of different hosts over a network. Hosts are numbered by
// their lowest rank. The value never changes, and whoever makes it of the same
// keys has an equal one. A nil *Hosts is one host, of however many ranks.
type Hosts struct {
	order []int // ranks, host after host, ascending on each
	place []int // by rank: its index in order
	host  []int // by rank
	first []int // by host: the index in order where it begins; then len(order)
}

// HostsOf makes Hosts of one key per rank, in rank order: ranks with equal keys
// live on the same host.
//
// NCCL: initTransportsRank in src/init.cc, which compares the ranks' host hashes.
func HostsOf[K comparable](keys []K) *Hosts {
	numbers := make(map[K]int)
	var ranks [][]int // by host
	h := &Hosts{host: make([]int, len(keys)), place: make([]int, len(keys)), first: []int{0}}
	for rank, key := range keys {
		number, known := numbers[key]
		if !known {
			number = len(numbers)
			numbers[key] = number
			ranks = append(ranks, nil)
		}
		h.host[rank] = number
		ranks[number] = append(ranks[number], rank)
	}
	for _, here := range ranks {
		for _, rank := range here {
			h.place[rank] = len(h.order)
			h.order = append(h.order, rank)
		}
		h.first = append(h.first, len(h.order))
	}
	return h
}

// Size is the number of ranks, 0 for a nil h.
func (h *Hosts) Size() int {
	if h == nil {
		return 0
	}
	return len(h.order)
}

// Count is the number of hosts, at least 1.
func (h *Hosts) Count() int {
	if h == nil {
		return 1
	}
	return max(1, len(h.first)-1)
}

// Of is the host that rank lives on.
func (h *Hosts) Of(rank int) int {
	if h == nil {
		return 0
	}
	return h.host[rank]
}

// Ranks lists the ranks of a host in ascending order, in memory of the caller's.
// A nil h has none to list.
func (h *Hosts) Ranks(host int) []int {
	if h.Size() == 0 {
		return nil
	}
	return slices.Clone(h.order[h.first[host]:h.first[host+1]])
}

// Largest is how many ranks the largest host has, 0 for a nil h.
func (h *Hosts) Largest() int {
	most := 0
	for host := range h.Count() {
		most = max(most, h.ranks(host))
	}
	return most
}

// MostCrowded is the host whose ranks have the fewest processors each, the lowest
// number among equals. cores has one number for each host, at least 1.
func (h *Hosts) MostCrowded(cores []int) (host int) {
	for other := 1; other < h.Count(); other++ {
		if h.ranks(other)*cores[host] > h.ranks(host)*cores[other] {
			host = other
		}
	}
	return host
}

// ranks is the number of ranks of a host.
func (h *Hosts) ranks(host int) int {
	if h.Size() == 0 {
		return 0
	}
	return h.first[host+1] - h.first[host]
}

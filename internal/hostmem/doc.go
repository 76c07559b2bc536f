// Package hostmem is memory outside the Go heap for buffers that proxies and
// sockets use: it begins on a page, stays where it is, and is locked, as far as the
// limit on locked memory allows, so that no page fault falls into a copy.
package hostmem

// Package shm connects ranks of different processes of one host through memory
// that both map.
//
// Every process has a Depot: it makes segments of anonymous memory (memfd),
// keeps them under a name, and hands their descriptors to other processes of the
// job over a unix socket. A FIFO's segment belongs to the process that receives,
// so that its pages are near the reader. Nothing has a name in a file system:
// when the last process that maps a segment ends, however it ends, the memory is
// gone, and the socket's abstract name with its process.
//
// Two processes are local to each other only if a descriptor passed from the one
// to the other and the memory behind it show the same bytes: host names and boot
// ids can't tell, containers share or separate them at will.
//
// Linux only; elsewhere Open returns ErrUnsupported.
package shm

package dir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// watchParent sends an event when the root is created, replaced or removed in its parent directory, until stop is called.
// fsnotify would receive an event for each write to every file next to the root, such as a log.
func watchParent(root string) (events <-chan fsnotify.Event, stop func(), err error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("create an inotify instance: %w", err)
	}
	parent := filepath.Dir(root)
	if _, err := unix.InotifyAddWatch(fd, parent, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVE|unix.IN_ONLYDIR); err != nil {
		unix.Close(fd)
		return nil, nil, fmt.Errorf("watch %s: %w", parent, err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	out, done := make(chan fsnotify.Event), make(chan struct{})
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if errors.Is(err, unix.EINTR) {
				continue
			} else if err != nil {
				return // closed
			}
			if op := opsOf(buf[:n], filepath.Base(root)); op != 0 {
				select {
				case out <- fsnotify.Event{Name: root, Op: op}:
				case <-done:
					return
				}
			}
		}
	}()
	return out, func() { close(done); go f.Close() }, nil // see Run about inotify
}

// opsOf returns what inotify events say about a name.
func opsOf(b []byte, name string) (op fsnotify.Op) {
	for len(b) >= unix.SizeofInotifyEvent {
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		if size < 0 || size > len(b) {
			return op
		}
		about := strings.TrimRight(string(b[:size]), "\x00")
		b = b[size:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0: // events were lost
			op |= fsnotify.Create
		case about != name:
		case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			op |= fsnotify.Create
		case mask&unix.IN_DELETE != 0:
			op |= fsnotify.Remove
		case mask&unix.IN_MOVED_FROM != 0:
			op |= fsnotify.Rename
		}
	}
	return op
}

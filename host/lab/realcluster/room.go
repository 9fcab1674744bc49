package realcluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// The inotify instances that a cluster needs, as counted on Kubernetes 1.36 and containerd 1.6. The kernel counts them for each
// user, and a kubelet that gets none does not start.
const (
	watchersOfNode         = 8 // kubelet 6, containerd, Service proxy
	watchersOfControlPlane = 9 // API server 4, controller manager 5
)

// room checks that the machine has inotify instances for a cluster.
func room(nodes int) error {
	need := watchersOfControlPlane + nodes*watchersOfNode
	for range need {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			limit, _ := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
			return fmt.Errorf("the cluster needs %d inotify instances, and of the %s that fs.inotify.max_user_instances allows fewer are free: stop other clusters, start fewer workers, or raise the limit",
				need, strings.TrimSpace(string(limit)))
		}
		if err != nil {
			return fmt.Errorf("create an inotify instance: %w", err)
		}
		defer unix.Close(fd) // all at once
	}
	return nil
}

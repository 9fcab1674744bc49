package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/controller"
	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/agent/reporter"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// controllerResult is the start of a controller.
type controllerResult struct {
	Took           float64 // s, until every policy has its status
	CPU, ServerCPU float64 // s
	Resident, Peak float64 // MiB
}

// waveResult is a rollout in which all nodes of the cluster write a report.
type waveResult struct {
	Took           float64 // s, for the reports
	StatusAfter    float64 // s, from the last report until the status has all nodes
	CPU, ServerCPU float64 // s
	Peak           float64 // MiB
}

// ControllerCommand is the command of bench-cluster that runs ControllerMain.
const ControllerCommand = "fleet-controller"

// ControllerMain runs a controller with a kubeconfig until its input ends.
func ControllerMain(args []string) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kube.RedirectKlog(log)
	return controller.Run(ctx, controller.Options{
		Connection: kube.Connection{Kubeconfig: args[0], Version: "bench"}, Config: config.Default(), Namespace: namespace, Identity: "bench", Log: log,
	})
}

// controllerProcess is the process of a controller.
type controllerProcess struct {
	benchutil.Process
	program *testnet.Program
	in      io.Closer
}

// startController starts a controller on the agents' host.
func (s *environment) startController(ctx context.Context) (*controllerProcess, error) {
	file, err := s.Cluster.ServiceAccountKubeconfig(ctx, namespace, controllerAccount)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, ControllerCommand, file)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	program, err := s.nodes.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the controller: %w", err)
	}
	return &controllerProcess{benchutil.Process(program.PID()), program, in}, nil
}

func (c *controllerProcess) stop() error {
	_ = c.in.Close()
	return c.program.Wait()
}

// measureController measures a controller with all nodes and policies: its start, and a rollout.
func (r *policyResults) measureController(ctx context.Context, s *environment, all *results) error {
	all.progress("%d Nodes, %d Services, %d policies", r.nodes, r.allPolicies, r.allPolicies)
	if r.services < r.allPolicies {
		if err := loadgen.CreateServices(ctx, s.Cluster, r.services, r.allPolicies, 0, 1); err != nil {
			return err
		}
	}
	err := s.Cluster.Parallel(ctx, r.nodes-r.agents, func(ctx context.Context, i int) error {
		return s.Cluster.AddNode(ctx, testcluster.Node{Name: nodeName(r.agents + i), Zone: "zone-0"})
	})
	if err == nil {
		err = s.createPolicies(ctx, r.policies, r.allPolicies, 2)
	}
	if err != nil {
		return err
	}
	list, err := s.Cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	nodes := list.Items
	all.progress("%d NodeReports", len(nodes))
	if err := r.reportAll(ctx, s, nodes, nil); err != nil {
		return err
	}
	all.progress("controller")
	c, err := r.measureStart(ctx, s)
	if err == nil {
		all.progress("a rollout to all nodes")
		err = r.measureWave(ctx, s, c, nodes)
	}
	if c != nil {
		if wrong := c.stop(); err == nil {
			err = wrong
		}
	}
	return err
}

// reportAll writes the reports of all nodes; pace, if it is not nil, is the time of report i.
func (r *policyResults) reportAll(ctx context.Context, s *environment, nodes []corev1.Node, pace func(i int) time.Time) error {
	observed, err := s.observed(ctx)
	if err != nil {
		return err
	}
	return s.Cluster.Parallel(ctx, len(nodes), func(ctx context.Context, i int) error {
		if pace != nil {
			time.Sleep(time.Until(pace(i)))
		}
		return s.writeReport(ctx, nodes[i].Name, nodes[i].UID, observed, r.allPolicies)
	})
}

// awaitStatus reads the events of a resource until n objects have a status that says that all nodes have them in force. begun is
// called when it reads.
func (s *environment) awaitStatus(ctx context.Context, resource string, n int, begun func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stream, err := s.Cluster.Client.CoreV1().RESTClient().Get().AbsPath(kindsPath, resource).Param("watch", "true").
		SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	defer stream.Close()
	if err := begun(); err != nil {
		return err
	}
	all := map[string]bool{}
	for events := json.NewDecoder(stream); len(all) < n; {
		var e struct{ Object v1alpha1.ServicePolicy } // the kinds of policies have the same status
		if err := events.Decode(&e); err != nil {
			return fmt.Errorf("watch %s: %d of %d have all nodes: %w", resource, len(all), n, err)
		}
		o := &e.Object
		done, of, _ := strings.Cut(o.Status.ProgrammedNodes, "/")
		if o.Status.ObservedGeneration == o.Generation && done == of && of != "" && of != "0" {
			all[o.Namespace+"/"+o.Name] = true
		}
	}
	return nil
}

// measureStart measures a controller from its start until every policy has its status.
func (r *policyResults) measureStart(ctx context.Context, s *environment) (c *controllerProcess, err error) {
	got := &r.Controller
	u, err := s.measureDuring(func() error {
		return s.awaitStatus(ctx, "servicepolicies", r.allPolicies, func() error {
			c, err = s.startController(ctx)
			return err
		})
	})
	if c == nil || err != nil {
		return c, err
	}
	cpu, err := c.CPU()
	got.Took, got.CPU, got.ServerCPU, got.Peak, got.Resident = u.Took.Seconds(), cpu.Seconds(), u.CPU.Seconds(), c.PeakRSS(), c.RSS()
	return c, err
}

// measureWave measures a rollout to all nodes, whose reports take as long as those of so many nodes do.
func (r *policyResults) measureWave(ctx context.Context, s *environment, c *controllerProcess, nodes []corev1.Node) error {
	if err := s.rollout(ctx, 100); err != nil {
		return err
	}
	c.ResetPeakRSS()
	before, err := c.CPU()
	if err != nil {
		return err
	}
	got := &r.Wave
	var begin, last time.Time
	u, err := s.measureDuring(func() error {
		return s.awaitStatus(ctx, "clusterservicepolicies", 1, func() error {
			begin = time.Now()
			err := r.reportAll(ctx, s, nodes, func(i int) time.Time { return begin.Add(time.Duration(i) * reporter.Spread) })
			last = time.Now()
			return err
		})
	})
	if err != nil {
		return err
	}
	after, err := c.CPU()
	got.Took, got.StatusAfter = last.Sub(begin).Seconds(), time.Since(last).Seconds()
	got.CPU, got.ServerCPU, got.Peak = (after - before).Seconds(), u.CPU.Seconds(), c.PeakRSS()
	return err
}

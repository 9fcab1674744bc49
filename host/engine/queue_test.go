package engine

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// queueRig applies what a changeQueue returns to a cluster, as the planner does.
type queueRig struct {
	t       *testing.T
	queue   *changeQueue
	left    int
	cluster *model.Snapshot
}

func newQueueRig(t *testing.T) *queueRig {
	return &queueRig{t: t, queue: newChangeQueue(Observers{}), cluster: model.NewSnapshot()}
}

func (r *queueRig) serviceOf(c *model.Change) model.Name {
	switch {
	case c.Kind == model.ServiceKind:
		return c.Name
	case c.Kind == model.SliceKind && c.Slice != nil:
		return c.Slice.Service
	case c.Kind == model.SliceKind && r.cluster.Slice(c.Name) != nil:
		return r.cluster.Slice(c.Name).Service
	}
	return model.Name{}
}

// step puts changes into the queue, and applies what it returns.
func (r *queueRig) step(arrived ...model.Change) (out []model.Change) {
	r.queue.put(arrived)
	out, r.left = r.queue.take(maxIntake, r.serviceOf)
	for _, c := range out {
		r.cluster.Apply(c)
	}
	return out
}

func changeOfService(namespace string, i int) model.Change {
	name := model.Name{Namespace: namespace, Name: fmt.Sprint("svc-", i)}
	return model.Change{Kind: model.ServiceKind, Name: name, Service: &model.Service{Name: name}}
}

func changeOfSlice(namespace string, service, i int) model.Change {
	name := model.Name{Namespace: namespace, Name: fmt.Sprint("slice-", i)}
	return model.Change{Kind: model.SliceKind, Name: name, Slice: &model.EndpointSlice{Name: name, Service: changeOfService(namespace, service).Name}}
}

func TestFewChangesAreTakenAtOnceInTheirOrder(t *testing.T) {
	r := newQueueRig(t)
	var arrived []model.Change
	for i := range maxIntake {
		arrived = append(arrived, changeOfService(fmt.Sprint("ns-", i%3), i))
	}
	if got := r.step(arrived...); !reflect.DeepEqual(got, arrived) || r.left != 0 {
		t.Errorf("took %d of %d changes, or in another order; %d are left", len(got), len(arrived), r.left)
	}
}

func TestChangeDoesNotWaitForManyOfAnotherNamespace(t *testing.T) {
	r := newQueueRig(t)
	var many []model.Change
	for i := range 20 * maxIntake {
		many = append(many, changeOfService("many", i))
	}
	if got := r.step(many...); len(got) != maxIntake {
		t.Fatalf("the first step takes %d changes, want %d", len(got), maxIntake)
	}
	r.step(changeOfService("other", 0), model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n"}, Node: &model.Node{}})
	if r.cluster.Services[changeOfService("other", 0).Name] == nil || r.cluster.Nodes["n"] == nil {
		t.Error("a change of another namespace or of a Node waits")
	}
	steps := 2
	for ; r.left > 0; steps++ {
		r.step()
	}
	if len(r.cluster.Services) != len(many)+1 || steps != 21 {
		t.Errorf("%d Services after %d steps, want %d after 21", len(r.cluster.Services), steps, len(many)+1)
	}
}

func TestChangesOfAServiceStayTogether(t *testing.T) {
	r := newQueueRig(t)
	const services, perService = 3 * maxIntake, 3
	var arrived []model.Change
	for n := range perService {
		for i := range services {
			arrived = append(arrived, changeOfSlice("ns", i, n*services+i))
		}
	}
	for i := range services {
		arrived = append(arrived, changeOfService("ns", i))
	}
	for step := 0; step == 0 || r.left > 0; step++ {
		r.step(arrived...)
		arrived = nil
		for name := range r.cluster.Services {
			if n := len(r.cluster.Slices[name]); n != perService {
				t.Fatalf("step %d: %s has %d of %d EndpointSlices", step, name, n, perService)
			}
		}
	}
	// The replacement of the slices of a Service, too.
	for i := range services {
		for n := range perService {
			arrived = append(arrived, model.Change{Kind: model.SliceKind, Name: changeOfSlice("ns", i, n*services+i).Name},
				changeOfSlice("ns", i, (perService+n)*services+i))
		}
	}
	for step := 0; step == 0 || r.left > 0; step++ {
		r.step(arrived...)
		arrived = nil
		for name, list := range r.cluster.Slices {
			if len(list) != perService {
				t.Fatalf("replacement, step %d: %s has %d EndpointSlices", step, name, len(list))
			}
		}
	}
}

// Changes that are divided among steps, and arrive meanwhile, lead to the same state as the same changes at once.
func TestChangeQueueLosesNoChange(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		r, want := newQueueRig(t), model.NewSnapshot()
		for range 30 {
			var arrived []model.Change
			for range random.IntN(3 * maxIntake) {
				ns, i := fmt.Sprint("ns-", random.IntN(3)), random.IntN(400)
				c := changeOfService(ns, i)
				if random.IntN(3) > 0 {
					c = changeOfSlice(ns, random.IntN(400), i) // moves to another Service
				}
				if random.IntN(3) == 0 {
					c = model.Change{Kind: c.Kind, Name: c.Name}
				}
				arrived = append(arrived, c)
				want.Apply(c)
			}
			r.step(arrived...)
		}
		for r.left > 0 {
			r.step()
		}
		if !reflect.DeepEqual(r.cluster, want) {
			t.Fatalf("seed %d: the state differs", seed)
		}
		if q := r.queue; len(q.changes) > 1 || cap(q.changes) > 8 || len(q.groups)+len(q.namespaces)+len(q.turns)+len(q.index) > 0 {
			t.Errorf("seed %d: an empty queue keeps memory: %+v", seed, q)
		}
	}
}

// As long as changes arrive faster than steps take them, the queue does not grow beyond the objects that wait.
func TestChangeQueueForgetsWhatIsTaken(t *testing.T) {
	r := newQueueRig(t)
	for range 50 {
		var arrived []model.Change
		for i := range 2 * maxIntake {
			arrived = append(arrived, changeOfService("ns", i))
		}
		r.step(arrived...)
		if n := len(r.queue.changes); n > 6*maxIntake {
			t.Fatalf("%d changes are kept, %d wait", n, r.left)
		}
	}
}

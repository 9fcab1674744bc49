package engine

import "github.com/sluice-proxy/sluice/host/core/model"

// maxIntake is how many changes of the cluster a step takes, more only for a Service that has more. 5,000 that arrive at once
// would otherwise make a step of 10 to 30 ms.
const maxIntake = 64

// intake divides many changes among steps. Namespaces take turns, so that a change in one does not wait for thousands in
// another. The changes of a Service and of its EndpointSlices that arrive together stay together, in their order: without
// some of them, the Service would have no endpoints for a moment. Dividing 5,000 changes takes a millisecond.
type intake struct {
	changes []model.Change      // those that wait, and those taken since the list was made
	index   map[changeKey]int   // of those that wait
	links   []links             // of each change
	groups  map[model.Name]span // the changes of a Service and its EndpointSlices, also after they are taken; others are groups without a name
	turns   []string            // namespaces with changes, the next one first
	waiting map[string]span     // first changes of the groups of a namespace, oldest first
}

// span is a list of changes, by their indices.
type span struct{ first, last int32 }

// links are the indices of the changes after one in lists.
type links struct{ inGroup, group int32 }

// take returns the changes that the next step takes, given those that have arrived, one of each object, with their indices. serviceOf
// returns the Service of a change, zero if it has none.
func (in *intake) take(arrived []model.Change, index map[changeKey]int, serviceOf func(*model.Change) model.Name) []model.Change {
	switch {
	case in.left() > 0:
		in.compact(serviceOf)
		for i := range arrived {
			in.add(arrived[i], serviceOf)
		}
	case len(arrived) <= maxIntake:
		return arrived
	default:
		in.reset(arrived, index, serviceOf)
	}
	out := make([]model.Change, 0, min(in.left(), maxIntake+maxIntake/8))
	for in.left() > 0 && len(out) < maxIntake {
		out = in.pop(out)
	}
	if in.left() == 0 {
		*in = intake{}
	}
	return out
}

// left returns the number of changes that wait.
func (in *intake) left() int { return len(in.index) }

// reset makes the intake contain these changes, and owns them.
func (in *intake) reset(changes []model.Change, index map[changeKey]int, serviceOf func(*model.Change) model.Name) {
	*in = intake{changes: changes, index: index, links: make([]links, len(changes)), groups: make(map[model.Name]span, len(changes)/2), waiting: map[string]span{}}
	for i := range changes {
		in.group(i, serviceOf)
	}
}

// compact forgets changes that have been taken, if they are most of the list.
func (in *intake) compact(serviceOf func(*model.Change) model.Name) {
	if len(in.changes) < 2*in.left()+maxIntake {
		return
	}
	left, index := make([]model.Change, 0, in.left()), make(map[changeKey]int, in.left())
	for i := range in.changes {
		if at, ok := in.index[keyOf(&in.changes[i])]; ok && at == i {
			index[keyOf(&in.changes[i])] = len(left)
			left = append(left, in.changes[i])
		}
	}
	in.reset(left, index, serviceOf)
}

// add adds a change, which replaces one of the same object.
func (in *intake) add(c model.Change, serviceOf func(*model.Change) model.Name) {
	if at, ok := in.index[keyOf(&c)]; ok {
		in.changes[at] = c
		return
	}
	in.index[keyOf(&c)] = len(in.changes)
	in.changes, in.links = append(in.changes, c), append(in.links, links{})
	in.group(len(in.changes)-1, serviceOf)
}

// group adds a change to the group of its Service, or to one of its own.
func (in *intake) group(i int, serviceOf func(*model.Change) model.Name) {
	c, at := &in.changes[i], int32(i)
	if service := serviceOf(c); service != (model.Name{}) {
		g, ok := in.groups[service]
		if ok && !in.taken(g.last) {
			in.links[g.last].inGroup, g.last = at, at
			in.groups[service] = g
			return
		}
		in.groups[service] = span{at, at}
	}
	list, ok := in.waiting[c.Name.Namespace]
	if ok {
		in.links[list.last].group, list.last = at, at
	} else {
		list = span{at, at}
		in.turns = append(in.turns, c.Name.Namespace)
	}
	in.waiting[c.Name.Namespace] = list
}

// taken reports whether the change of a Service or EndpointSlice has been taken: its place is cleared.
func (in *intake) taken(i int32) bool { return keyOf(&in.changes[i]) == changeKey{} }

// pop removes the next group, and appends it to a list. There must be one.
func (in *intake) pop(out []model.Change) []model.Change {
	namespace := in.turns[0]
	in.turns = in.turns[1:]
	list := in.waiting[namespace]
	i := list.first
	if i == list.last {
		delete(in.waiting, namespace)
	} else {
		in.waiting[namespace] = span{in.links[i].group, list.last}
		in.turns = append(in.turns, namespace)
	}
	for {
		out = append(out, in.changes[i])
		delete(in.index, keyOf(&in.changes[i]))
		in.changes[i] = model.Change{}
		if i = in.links[i].inGroup; i == 0 {
			return out
		}
	}
}

package engine

import "github.com/sluice-proxy/sluice/host/model"

// maxIntake is how many changes of the cluster a step takes, more only for a Service that has more. 5,000 that arrive at once
// would otherwise make a step of 10 to 30 ms.
const maxIntake = 256

// intake divides many changes among steps. Namespaces take turns, so that a change in one does not wait for thousands in
// another. The changes of a Service and of its EndpointSlices that arrive together stay together, in their order: without
// some of them, the Service would have no endpoints for a moment.
type intake struct {
	turns   []string                  // namespaces with changes, the next one first
	waiting map[string][]*changeGroup // by namespace, oldest first
	groups  map[model.Name]*changeGroup
	objects map[changeKey]groupedChange
}

// changeGroup has the changes of a Service and its EndpointSlices, or one change of another object.
type changeGroup struct {
	service model.Name // zero: another object
	changes []model.Change
}

// groupedChange is the place of a change.
type groupedChange struct {
	group *changeGroup
	index int
}

// next returns the changes that the next step takes, given those that have arrived. serviceOf returns the Service of a change,
// zero if it has none.
func (in *intake) next(arrived []model.Change, serviceOf func(*model.Change) model.Name) []model.Change {
	if in.left() == 0 && len(arrived) <= maxIntake {
		return arrived
	}
	for i := range arrived {
		in.add(&arrived[i], serviceOf)
	}
	var out []model.Change
	for in.left() > 0 && len(out) < maxIntake {
		g := in.pop()
		out = append(out, g.changes...)
	}
	return out
}

// left returns the number of changes that wait.
func (in *intake) left() int { return len(in.objects) }

func (in *intake) add(c *model.Change, serviceOf func(*model.Change) model.Name) {
	key := keyOf(c)
	if at, ok := in.objects[key]; ok {
		at.group.changes[at.index] = *c
		return
	}
	service := serviceOf(c)
	g := in.groups[service]
	if g == nil {
		g = in.newGroup(service, c.Name.Namespace)
	}
	in.objects[key] = groupedChange{g, len(g.changes)}
	g.changes = append(g.changes, *c)
}

// newGroup appends a group to those of a namespace.
func (in *intake) newGroup(service model.Name, namespace string) *changeGroup {
	if in.objects == nil {
		*in = intake{waiting: map[string][]*changeGroup{}, groups: map[model.Name]*changeGroup{}, objects: map[changeKey]groupedChange{}}
	}
	g := &changeGroup{service: service}
	if service != (model.Name{}) {
		in.groups[service] = g
	}
	if len(in.waiting[namespace]) == 0 {
		in.turns = append(in.turns, namespace)
	}
	in.waiting[namespace] = append(in.waiting[namespace], g)
	return g
}

// pop removes the next group. There must be one.
func (in *intake) pop() *changeGroup {
	namespace := in.turns[0]
	in.turns = in.turns[1:]
	list := in.waiting[namespace]
	g := list[0]
	if len(list) > 1 {
		in.waiting[namespace] = list[1:]
		in.turns = append(in.turns, namespace)
	} else {
		delete(in.waiting, namespace)
	}
	delete(in.groups, g.service)
	for i := range g.changes {
		delete(in.objects, keyOf(&g.changes[i]))
	}
	if len(in.objects) == 0 {
		*in = intake{} // the maps keep their largest size ever
	}
	return g
}

package wasm

// recursive tells of each own function whether a chain of calls can lead back
// to it. A call by table may reach every function whose reference the module
// takes anywhere.
func (m *Module) recursive() []bool {
	out := make([]bool, len(m.bodies))
	if m.unread {
		for i := range out {
			out[i] = true
		}
		return out
	}
	g := m.callGraph()
	for _, group := range g.groups() {
		if len(group) == 1 && !g.hasEdge(group[0], group[0]) {
			continue
		}
		for _, f := range group {
			if f < len(out) {
				out[f] = true
			}
		}
	}
	return out
}

// callGraph has a node for each own function and one, the last, for all calls
// by table together.
type callGraph struct{ edges [][]int }

func (m *Module) callGraph() callGraph {
	table := len(m.bodies)
	g := callGraph{edges: make([][]int, table+1)}
	own := func(index uint32) (int, bool) {
		i := int64(index) - int64(m.importedFuncs)
		return int(i), i >= 0 && i < int64(table)
	}
	for i, f := range m.bodies {
		for _, c := range f.calls {
			if callee, ok := own(c); ok {
				g.edges[i] = append(g.edges[i], callee)
			}
		}
		if f.indirect {
			g.edges[i] = append(g.edges[i], table)
		}
	}
	for c := range m.reachable {
		if callee, ok := own(c); ok {
			g.edges[table] = append(g.edges[table], callee)
		}
	}
	return g
}

func (g callGraph) hasEdge(from, to int) bool {
	for _, e := range g.edges[from] {
		if e == to {
			return true
		}
	}
	return false
}

// groups finds the sets of nodes that reach each other (Tarjan's algorithm,
// without recursion: a module may nest its calls a million deep).
func (g callGraph) groups() [][]int {
	type frame struct{ node, edge int }
	n := len(g.edges)
	index, low := make([]int, n), make([]int, n) // 0: not seen
	onStack := make([]bool, n)
	var stack []int
	var path []frame
	var out [][]int
	next := 1
	enter := func(v int) {
		index[v], low[v] = next, next
		next++
		stack = append(stack, v)
		onStack[v] = true
		path = append(path, frame{node: v})
	}
	for root := range n {
		if index[root] != 0 {
			continue
		}
		enter(root)
		for len(path) > 0 {
			top := &path[len(path)-1]
			v := top.node
			if top.edge < len(g.edges[v]) {
				w := g.edges[v][top.edge]
				top.edge++
				if index[w] == 0 {
					enter(w)
				} else if onStack[w] {
					low[v] = min(low[v], index[w])
				}
				continue
			}
			path = path[:len(path)-1]
			if len(path) > 0 {
				parent := path[len(path)-1].node
				low[parent] = min(low[parent], low[v])
			}
			if low[v] != index[v] {
				continue
			}
			at := len(stack) - 1
			for stack[at] != v {
				at--
			}
			group := append([]int(nil), stack[at:]...)
			for _, w := range group {
				onStack[w] = false
			}
			stack = stack[:at]
			out = append(out, group)
		}
	}
	return out
}

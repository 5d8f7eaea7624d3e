package emit

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
)

// prunedFiles are the fixed files that serve payloads and handlers. Which of
// their declarations a package needs follows from the types that its payloads
// use, and from whether its destinations are asked anything.
var prunedFiles = []string{
	"bigint.gen.go", "date.gen.go", "decimal.gen.go", "decode.gen.go", "duration.gen.go",
	"encode.gen.go", "jsontext.gen.go", "path.gen.go", "payload.gen.go", "route.gen.go", "validate.gen.go",
}

// prune takes from the pruned files of a package what none of its other files
// reaches, and the files of which nothing is left.
func prune(files []File) ([]File, error) {
	p, err := newPruner(files)
	if err != nil {
		return nil, err
	}
	for i, parsed := range p.syntax {
		if !p.prunable[i] {
			p.visit(parsed)
		}
	}
	kept := slices.Clone(files)
	err = inParallel(len(files), func(i int) (err error) {
		if p.prunable[i] {
			kept[i].Content, err = p.cut(files[i].Content, p.syntax[i])
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(kept, func(file File) bool { return file.Content == nil }), nil
}

type pruner struct {
	positions *token.FileSet
	syntax    []*ast.File // by file
	prunable  []bool      // by file
	info      types.Info
	nodes     map[types.Object]ast.Node      // what declares an object of a pruned file
	methods   map[types.Object][]*types.Func // of a type of a pruned file, those that are exported
	used      map[types.Object]bool          // objects, and imports, that are reached
}

// newPruner resolves the identifiers of the package. The packages that it
// imports are not needed for that, and what the checker says about their
// absence is passed over.
func newPruner(files []File) (*pruner, error) {
	p := &pruner{
		positions: token.NewFileSet(),
		info: types.Info{
			Defs:      map[*ast.Ident]types.Object{},
			Uses:      map[*ast.Ident]types.Object{},
			Implicits: map[ast.Node]types.Object{},
		},
		nodes:   map[types.Object]ast.Node{},
		methods: map[types.Object][]*types.Func{},
		used:    map[types.Object]bool{},
	}
	for _, file := range files {
		prunable := slices.Contains(prunedFiles, file.Path)
		mode := parser.SkipObjectResolution
		if prunable {
			mode |= parser.ParseComments
		}
		parsed, err := parser.ParseFile(p.positions, file.Path, file.Content, mode)
		if err != nil {
			return nil, err
		}
		p.syntax = append(p.syntax, parsed)
		p.prunable = append(p.prunable, prunable)
	}
	config := types.Config{Error: func(error) {}}
	_, _ = config.Check("", p.positions, p.syntax, &p.info)
	for i, parsed := range p.syntax {
		if p.prunable[i] {
			p.declarations(parsed)
		}
	}
	return p, nil
}

// declarations notes which node declares which object.
func (p *pruner) declarations(file *ast.File) {
	for _, declaration := range file.Decls {
		switch declaration := declaration.(type) {
		case *ast.FuncDecl:
			object := p.info.Defs[declaration.Name]
			p.nodes[object] = declaration
			if method, ok := object.(*types.Func); ok && declaration.Recv != nil && method.Exported() {
				receiver := receiverOf(method)
				p.methods[receiver] = append(p.methods[receiver], method)
			}
		case *ast.GenDecl:
			for _, spec := range declaration.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					p.nodes[p.info.Defs[spec.Name]] = spec
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						p.nodes[p.info.Defs[name]] = spec
					}
				}
			}
		}
	}
}

func receiverOf(method *types.Func) types.Object {
	receiver := method.Signature().Recv().Type()
	if pointer, ok := receiver.(*types.Pointer); ok {
		receiver = pointer.Elem()
	}
	return receiver.(*types.Named).Obj()
}

// visit marks what a node uses, and what that uses in its turn.
func (p *pruner) visit(node ast.Node) {
	ast.Inspect(node, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			p.use(p.info.Uses[name])
		}
		return true
	})
}

func (p *pruner) use(object types.Object) {
	if function, ok := object.(*types.Func); ok {
		object = function.Origin()
	}
	if object == nil || p.used[object] {
		return
	}
	p.used[object] = true
	if node, ok := p.nodes[object]; ok {
		p.visit(node)
	}
	// An exported method may be called through an interface of another package.
	for _, method := range p.methods[object] {
		p.use(method)
	}
}

// cut takes what is not used out of a file; nil means that nothing is left.
func (p *pruner) cut(source []byte, file *ast.File) ([]byte, error) {
	var left bytes.Buffer
	declared := false
	at := 0
	skip := func(node ast.Node, doc, comment *ast.CommentGroup) {
		start, end := node.Pos(), node.End()
		if doc != nil {
			start = doc.Pos()
		}
		if comment != nil {
			end = comment.End()
		}
		left.Write(source[at:p.positions.Position(start).Offset])
		at = p.positions.Position(end).Offset
		if bytes.HasPrefix(source[at:], []byte("\n")) {
			at++
		}
	}
	for _, declaration := range file.Decls {
		switch declaration := declaration.(type) {
		case *ast.FuncDecl:
			if p.used[p.info.Defs[declaration.Name]] {
				declared = true
			} else {
				skip(declaration, declaration.Doc, nil)
			}
		case *ast.GenDecl:
			var unused []ast.Spec
			for _, spec := range declaration.Specs {
				if !p.specUsed(spec) {
					unused = append(unused, spec)
				}
			}
			if len(unused) == len(declaration.Specs) {
				skip(declaration, declaration.Doc, nil)
				continue
			}
			declared = declared || declaration.Tok != token.IMPORT
			for _, spec := range unused {
				switch spec := spec.(type) {
				case *ast.ImportSpec:
					skip(spec, spec.Doc, spec.Comment)
				case *ast.TypeSpec:
					skip(spec, spec.Doc, spec.Comment)
				case *ast.ValueSpec:
					skip(spec, spec.Doc, spec.Comment)
				}
			}
		}
	}
	if !declared {
		return nil, nil
	}
	if at == 0 {
		return source, nil
	}
	left.Write(source[at:])
	return format(left.Bytes())
}

func (p *pruner) specUsed(spec ast.Spec) bool {
	switch spec := spec.(type) {
	case *ast.ImportSpec:
		return p.used[p.info.Implicits[spec]]
	case *ast.TypeSpec:
		return p.used[p.info.Defs[spec.Name]]
	case *ast.ValueSpec:
		return slices.ContainsFunc(spec.Names, func(name *ast.Ident) bool { return p.used[p.info.Defs[name]] })
	}
	return true
}

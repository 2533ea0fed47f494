def infer(model, stored, unknown, as_part_of): raise NotImplementedError

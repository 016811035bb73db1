
import torch


def factory(config):
    def pool(hidden_states, metadata):
        cursor = metadata.get_pooling_cursor()
        firsts, lasts = cursor.first_token_indices_gpu.tolist(), cursor.last_token_indices_gpu.tolist()
        chunks = [hidden_states[max(first - 1, 0) : last + 1] for first, last in zip(firsts, lasts)]
        outputs = []
        for state, chunk, done in zip(metadata.pooling_states, chunks, cursor.get_finished_mask()):
            state.hidden_states_cache.append(chunk.clone())
            outputs.append(torch.cat(state.hidden_states_cache) if done else None)
            if done:
                state.clean()
        return outputs

    return pool
